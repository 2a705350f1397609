"""The world of instructions whose answers a rule can check, for a model that has read English.

    Write about bread in at most twelve words.

An answer is worth 1 if it has ended, holds at least four words, names the topic and keeps to the one
constraint of its prompt, else 0. That it is one sentence is asked for and not checked. There are eight
constraints, and SmolLM2-135M-Instruct (scripts/smollm2.py) starts out keeping each in 5 to 60 % of its
answers: a group in which all succeed, or none, learns nothing. Two of them, and 102
topics, are never trained on.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from data.records import PromptRecord
from data.templates import Turn, chat_prompt

LEAST_WORDS = 4
SPLITS = {"train": (0, 100), "validation": (100, 120), "test": (120, None)}  # of the topics
TOPICS = """
bread cheese coffee tea honey salt sugar rice soup chocolate butter apples oranges lemons grapes tomatoes
potatoes onions garlic pepper mushrooms eggs milk pancakes pizza noodles salad cookies cake wine
dogs cats horses cows sheep goats pigs chickens ducks owls eagles penguins swans crows bees ants
butterflies spiders whales dolphins sharks salmon turtles snakes frogs lions tigers elephants bears
raccoons foxes rabbits hamsters bats camels
rain snow wind thunder lightning clouds fog rainbows summer winter autumn spring mornings nights sunsets
shadows mountains rivers lakes oceans islands deserts forests beaches caves volcanoes glaciers
waterfalls valleys meadows gardens
trees roses tulips grass petals seeds moss cactus bamboo oaks
bicycles cars trains boats airplanes buses bridges roads tunnels harbors rockets elevators
hammers chisels scissors needles ropes ladders mirrors candles lamps clocks keys doors windows chairs
tables beds pillows blankets shoes hats gloves umbrellas pockets buttons rings bottles cups spoons ovens
pianos guitars drums violins songs dances paintings photographs statues poems novels letters maps
newspapers libraries museums theaters circuses puppets kites balloons marbles
soccer tennis chess swimming skiing sailing fishing hiking camping climbing
schools teachers doctors farmers bakers painters pilots sailors soldiers children grandparents neighbors
friends markets kitchens villages cities castles lighthouses windmills churches hospitals
paper glass gold silver iron wood stone cotton wool leather
computers telephones cameras robots
stars planets comets dreams laughter sleep silence
""".split()


class Constraint(NamedTuple):
    """What is asked about a topic, and whether an answer without white space around it keeps to it."""

    prompt: str
    kept: Callable[[str], bool]


def words(text: str) -> list[str]:
    """The words in lower case, without the marks around them."""
    return re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", text.lower())


CONSTRAINTS = {
    "twelve words": Constraint(
        "Write about {topic} in at most twelve words.", lambda text: len(words(text)) <= 12
    ),
    "question": Constraint(
        "Ask one question about {topic}.",
        lambda text: text.endswith(("?", "？")) and len(re.findall("[?？]", text)) == 1,
    ),
    "without the": Constraint(
        'Write one sentence about {topic} without the word "the".',
        lambda text: "the" not in words(text),
    ),
    "no comma": Constraint(
        "Write one sentence about {topic} without a comma.",
        lambda text: not re.search("[,，]", text),
    ),
    "when": Constraint(
        'Write one sentence about {topic} that begins with the word "When".',
        lambda text: words(text)[0] == "when",
    ),
    "child": Constraint(
        "Write one sentence about {topic} and a child.", lambda text: names("child", text)
    ),
    "because": Constraint(
        'Write one sentence about {topic} with the word "because".',
        lambda text: "because" in words(text),
    ),
    "number": Constraint(
        "Write one sentence about {topic} with a number in it.",
        lambda text: any(character.isdigit() for character in text),
    ),
}
HELD_OUT = ("because", "number")


def prompts(split: str) -> list[PromptRecord]:
    """The prompts of a split in a fixed random order: its topics with each of its constraints.

    100 topics are trained on, 20 are for validation, 102 for the test, which alone has the held-out
    constraints. `meta` names the topic and the constraint.
    """
    first, last = SPLITS[split]
    topics = random.Random(0).sample(TOPICS, len(TOPICS))[first:last]
    rules = [name for name in CONSTRAINTS if split == "test" or name not in HELD_OUT]
    records = [_prompt(topic, rule) for topic in topics for rule in rules]
    return random.Random(1).sample(records, len(records))


def _prompt(topic: str, rule: str) -> PromptRecord:
    request = CONSTRAINTS[rule].prompt.format(topic=topic)
    meta = {"topic": topic, "rule": rule, "typed": request}
    return PromptRecord(chat_prompt(request), meta=meta, turns=(Turn("user", request),))


def read_prompt(text: str) -> PromptRecord:
    """A typed text as a chat's prompt, with its rule if it is one of this world's."""
    for name, rule in CONSTRAINTS.items():
        form = re.escape(rule.prompt).replace(re.escape("{topic}"), "([a-z]+)")
        if match := re.fullmatch(form, text.strip()):
            return _prompt(match[1], name)
    return PromptRecord(chat_prompt(text.strip()), turns=(Turn("user", text.strip()),))


def names(topic: str, text: str) -> bool:
    """Whether a word of the text is the topic, also without or with its -s; "bread's" is one of bread.

    Other plurals than -s, -es behind o, x and h, and -ies (glasses, cacti) are not known.
    """
    forms = {topic, f"{topic}s", re.sub("(?<![isu])s$", "", topic)}  # not of glass, tennis, cactus
    forms |= {re.sub("(?<=[oxh])es$", "", topic), re.sub("ies$", "y", topic)}
    return any(re.split("['’]", word)[0] in forms for word in words(text))


def kept(record: PromptRecord, response: str, has_eos: bool) -> float:
    """1.0 if the answer has ended, has four words or more, names the topic and keeps the constraint."""
    text, topic = response.strip(), record.meta["topic"]
    enough = has_eos and len(words(text)) >= LEAST_WORDS and names(topic, text)
    return float(enough and CONSTRAINTS[record.meta["rule"]].kept(text))


# what data/sources.py asks of a world besides

gold, CHECK, SORTED_BY_LENGTH = kept, "constraint kept", False
corpus = sample_response = prefers = step_checks = None  # a world of prompts alone
