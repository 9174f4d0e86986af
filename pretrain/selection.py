"""Which classes make up each dataset of the package, which pictures of them, and which others pretraining may see.

    for comparing methods            animals food objects faces flags sketch_nature sketch_things photos clothes
    the same, far from pretraining   icons signs digits
    kept out, to fix the settings    places events sketch_rest

Every class has several drawings (by studios that pretraining never saw), sketches or photographs, and each of them is
used on one side only: to train, to validate or to test.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from calprompt.pocket.render import Scene
from pretrain.icons import CLASSES as ICONS

ANIMALS = ("mammals", "birds", "reptiles", "marine life", "bugs", "amphibians")
FOOD = ("vegetables", "fruit", "cooked / prepared", "asian", "sweets & candy", "drink", "dishware")
FACES = (
    "smiling", "with tongue", "sleepy", "affectionate", "with glasses", "neutral / skeptical", "concerned", "unwell",
    "negative", "with hands", "with hats",
)  # fmt: skip
THINGS = (
    "clothing", "music", "light, film & video", "musical instruments", "tools", "computer", "writing", "phone",
    "household items", "office supplies", "medical", "science equipment", "lock & keys", "other objects",
)  # fmt: skip
PLACES = (
    "ground transportation", "water transportation", "air transportation", "buildings", "religious buildings",
    "geographic locations", "other places",
)  # fmt: skip
EVENTS = ("games & hobbies", "events & holidays", "award medals", "sports", "arts & crafts", "weather")
SKETCHED = json.loads((Path(__file__).parent / "sketches.json").read_text("utf-8"))

# Which sketches and photographs pretraining may see; the datasets take theirs from the rest. Drawings of emoji need no
# such rule: the datasets are drawn by studios that pretraining never uses.
SKETCHES = 15  # the first sketches of each class are seen in pretraining
PHOTOS = 500  # the first training photographs of each class; the datasets use the test photographs
CLOTHES = 500  # the first photographs of each class
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = ("t-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")  # none are seen


@dataclass(frozen=True)
class Choice:
    """A dataset: where its classes come from and how many pictures each gets.

    source  "emoji" with kinds, "sketch" or "icons" with classes, or the name of a set of photographs or digits
    most    of the classes, the first by a hash of their names
    """

    name: str
    source: str
    members: tuple[str, ...]
    template: str
    train: int
    val: int
    test: int
    most: int | None = None
    without: tuple[str, ...] = ()


COMPARED = (
    Choice("animals", "emoji", ANIMALS, "a picture of a {}, a type of animal.", 32, 8, 46, without=("paw prints",)),
    Choice("food", "emoji", FOOD, "a picture of {}, a type of food or drink.", 32, 8, 48),
    Choice("objects", "emoji", THINGS, "a picture of a {}.", 32, 8, 24),
    Choice("faces", "emoji", FACES, "an emoji of a {}.", 32, 8, 40),
    Choice("flags", "emoji", ("country flags",), "a picture of the flag of {}.", 32, 8, 31, most=100),
    Choice("sketch_nature", "sketch", tuple(SKETCHED["nature"]), "a sketch of a {}.", 24, 8, 45),
    Choice("sketch_things", "sketch", tuple(SKETCHED["things"]), "a sketch of a {}.", 24, 8, 28),
    Choice("photos", "cifar10", (), "a photo of a {}.", 48, 16, 320),
    Choice("clothes", "fashion", (), "a photo of a {}.", 48, 16, 320),
    Choice("icons", "icons", tuple(ICONS["icons"]), "an icon of a {}.", 32, 8, 36),
    Choice("signs", "icons", tuple(ICONS["signs"]), "an icon of a {}.", 32, 8, 140),
    Choice("digits", "digits", (), "a picture of the number {}.", 48, 16, 320),
)  # fmt: skip
KEPT_OUT = (
    Choice("places", "emoji", PLACES, "a picture of a {}.", 32, 8, 30),
    Choice("events", "emoji", EVENTS, "a picture of a {}.", 32, 8, 40),
    Choice("sketch_rest", "sketch", tuple(SKETCHED["rest"]), "a sketch of a {}.", 24, 8, 40),
)
CHOICES = (*COMPARED, *KEPT_OUT)


@dataclass(frozen=True)
class Shift:
    """Other pictures of the classes of one dataset, to test on only.

    drawings  "same": the test drawings in another scene; "black": black ones; "sketch": sketches, where there are any
    """

    name: str
    title: str
    source: str
    drawings: str
    test: int
    scene: Scene | None = None


SHIFTED = "animals"
UNSEEN = "drawings of unseen studios"
SHIFTS = (
    Shift("animals_posed", "animals, small and turned", UNSEEN, "same", 46, Scene(size=(40, 60), turn=60, shift=20)),
    Shift("animals_line", "animals in black ink", f"black {UNSEEN}", "black", 32, Scene(paper=50)),
    Shift(
        "animals_corrupted",
        "animals, corrupted",
        UNSEEN,
        "same",
        46,
        Scene(tint=45, clutter=100, paper=0, blur=70, noise=25),
    ),
    Shift("animals_sketch", "animals sketched by hand", "Quick, Draw! sketches", "sketch", 53),
)
