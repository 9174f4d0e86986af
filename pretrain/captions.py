"""Sentences for a concept: its names in many frames, short and long, true to the medium; or a list of keywords."""

from __future__ import annotations

import random

from pretrain.concepts import Concept

FRAMES = {
    "any": (
        "{}", "{}.", "a {}.", "the {}.", "a picture of a {}.", "a picture of {}.", "an image of a {}.", "this is a {}.",
        "a picture of the {}.", "a small picture of a {}.", "a blurry picture of a {}.",
        "a {} on a coloured background.",
        "there is a {} in the picture.", "a good picture of a {}.", "a bad picture of a {}.", "a close-up of a {}.",
        "one {} and nothing else.", "here you can see a {}.", "a low resolution image of the {}.",
        "this small picture in low resolution, with a coloured background behind, shows a {}.",
        "if you look closely at this little picture, you can see that somebody has made a {}.",
        "what you can see here, in front of a more or less plain and simple background, is called a {}.",
    ),
    "drawing": (
        "a drawing of a {}.", "an emoji of a {}.", "an icon of a {}.", "a cartoon of a {}.", "clip art of a {}.",
        "a coloured drawing of a {}.", "a drawing of {}.", "an illustration of a {}.", "the {} emoji.",
        "an artist has made this colourful drawing for people to send to friends; it is a {}.",
    ),
    "ink": (
        "a line drawing of a {}.", "a black icon of a {}.", "a silhouette of a {}.", "a pictogram of a {}.",
        "a drawing of a {}.", "a black and white drawing of a {}.", "an icon of a {}.",
    ),
    "sketch": (
        "a sketch of a {}.", "a hand drawn {}.", "a quick sketch of a {}.", "a doodle of a {}.", "a drawing of a {}.",
        "a sketch of {}.", "somebody has sketched a {} in twenty seconds.",
    ),
    "photo": (
        "a photo of a {}.", "a photograph of a {}.", "a photo of the {}.", "a blurry photo of a {}.",
        "a small photo of a {}.", "a photo of a {} taken with a camera.",
    ),
}  # fmt: skip


def caption(concept: Concept, medium: str, dice: random.Random) -> str:
    """A sentence that is true of a picture of this concept."""
    name = concept.label if dice.random() < 0.6 else dice.choice(concept.names)
    if name.startswith("flag ") and dice.random() < 0.7:
        name = dice.choice(("flag of ", "")) + name.removeprefix("flag ")
    frame = dice.choice(FRAMES["any"] if dice.random() < 0.5 else FRAMES[medium])
    if concept.kind and dice.random() < 0.15:
        frame = frame.removesuffix(".") + f", a type of {concept.kind}."
    if concept.keywords and dice.random() < 0.2:
        words = dice.sample(concept.keywords, min(len(concept.keywords), dice.randint(1, 5)))
        frame = dice.choice(
            (f"{', '.join(words)}: {{}}", f"{{}}, {', '.join(words)}", f"a {{}} with {', '.join(words)}.")
        )
    return frame.replace("{}", name)
