"""The n-gram baseline."""

import random

import torch

from reward_model.ngrams import COLUMNS, NgramRegression, bags, features, scores_of


def test_features_are_words_and_neighbours_once_in_lower_case():
    assert len(features("Good good film")) == 4  # good, film, good good, good film
    assert features("A b") == features("a  B.")
    assert features("a b") != features("b a")
    assert len(features("don't!")) == 3  # don't, !, and both
    assert features("") == []
    assert all(0 <= column < COLUMNS for column in features("one two three four"))


def test_a_score_is_the_sum_of_weights_over_the_root_of_their_number():
    weight = torch.zeros(COLUMNS + 1)
    weight[3], weight[5], weight[-1] = 2.0, 1.0, 0.25
    scores = scores_of(weight, *bags([[3, 5, 7, 9], [], [5]]))
    torch.testing.assert_close(scores, torch.tensor([3 / 2 + 0.25, 0.25, 1.25]))


def test_it_learns_which_words_are_good_and_where_not_turns_them():
    rng = random.Random(0)
    fillers = [f"word{i}" for i in range(10)]
    texts, labels = [], []
    for _ in range(1200):
        good, turned = rng.random() < 0.5, rng.random() < 0.5
        words = rng.sample(fillers, 5)
        words.insert(2, ("not " if turned else "") + ("great" if good != turned else "awful"))
        texts.append(" ".join(words))
        labels.append(good)
    judge = NgramRegression().fit(texts[:1000], labels[:1000], batch_size=32)
    right = (judge(texts[1000:]) > 0) == torch.tensor(labels[1000:])
    assert right.float().mean() > 0.9
    assert NgramRegression()(["anything"]).tolist() == [0.0]
