"""REINFORCE by hand: what one sample does to the logits of a softmax, without autograd."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations import losses as library


def reinforce_push(logits, word, reward):
    one_hot = torch.zeros_like(logits)
    one_hot[word] = 1
    return reward * (one_hot - logits.softmax(-1))


def by_autograd(logits, word, reward):
    """The gradient of the library's loss for a response of one token, with a minus."""
    leaf = logits.detach().clone().requires_grad_()
    log_prob = leaf.log_softmax(-1)[word].view(1, 1)
    loss = library.policy_gradient(log_prob, torch.full_like(log_prob.detach(), reward))
    return -torch.autograd.grad(loss.sum(), leaf)[0]


@mistake
def sign_flipped(logits, word, reward):
    """this is the gradient of the loss. The push on the logits goes uphill: a word with a positive
    reward must go up."""
    return -reinforce_push(logits, word, reward)


@mistake
def no_reward(logits, word, reward):
    """you left the reward out: this is the gradient of log pi alone, and good and bad words are
    pushed alike."""
    return reinforce_push(logits, word, 1.0)


@mistake
def one_hot_alone(logits, word, reward):
    """you raise the word that was said and forget that the others must give up the probability:
    subtract softmax(logits) from the one-hot vector."""
    return reward * torch.eye(len(logits))[word].to(logits.dtype)


@mistake
def gradient_of_pi(logits, word, reward):
    """this is the gradient of pi, not of log pi: there is a factor pi(word) too much. It is the
    factor that drawing the word supplies already."""
    return logits.softmax(-1)[word] * reinforce_push(logits, word, reward)


@mistake
def logits_for_probabilities(logits, word, reward):
    """you subtract the logits themselves. Probabilities are wanted: softmax(logits)."""
    return reward * (torch.eye(len(logits))[word].to(logits.dtype) - logits)


@mistake
def average_over_words(logits, word, reward):
    """you divide by the number of words. This is one sample: nothing is averaged here."""
    return reinforce_push(logits, word, reward) / len(logits)


def one_word(generator: torch.Generator) -> Arguments:
    words = int(torch.randint(2, 7, (1,), generator=generator))
    return {
        "logits": 2 * torch.randn(words, generator=generator),
        "word": int(torch.randint(words, (1,), generator=generator)),
        "reward": float(3 * torch.randn((), generator=generator)),
    }


def case(about: str, word: int, reward: float, wanted: list[float]) -> Case:
    """Three words with the probabilities 0.2, 0.3 and 0.5."""
    logits = torch.tensor([0.2, 0.3, 0.5]).log()
    return Case(about, {"logits": logits, "word": word, "reward": reward}, wanted)


EXERCISE = Exercise(
    statement="Return reward * (one-hot of the word - softmax(logits)), a tensor (V,).",
    solution=reinforce_push,
    library=by_autograd,
    cases=(
        case("a draw of word 0 with reward 3", 0, 3.0, [2.4, -0.9, -1.5]),
        case("a draw of word 2 with reward 1", 2, 1.0, [-0.2, -0.3, 0.5]),
        case("a negative reward", 1, -2.0, [0.4, -1.4, 1.0]),
    ),
    random=one_word,
)
