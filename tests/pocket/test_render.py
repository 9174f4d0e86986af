"""Renders: the same bits everywhere, each picture on its own, and what a scene says."""

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from calprompt.pocket.render import SIZE, Scene, random_bits, render

STILL = Scene(size=(100, 100), turn=0, shift=0, tint=0, clutter=0, paper=100, blur=0, noise=0)


def drawing(seed: int, side: int = 48) -> np.ndarray:
    """A drawing of random colours and opacities."""
    raw = np.random.PCG64(seed).random_raw(side * side * 4)
    return (raw >> np.uint64(40)).astype(np.uint8).reshape(side, side, 4)


def bits(*seeds: int) -> np.ndarray:
    return np.stack([random_bits("test", seed) for seed in seeds])


def test_the_same_bits_on_every_machine():
    drawings = np.stack([drawing(seed) for seed in range(40)])
    pictures = render(drawings, bits(*range(40)), Scene(blur=50, noise=10))
    assert hashlib.sha256(pictures.tobytes()).hexdigest() == DIGEST


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(0, 39))
def test_a_picture_does_not_depend_on_its_neighbours(count, which):
    which %= count
    drawings = np.stack([drawing(seed) for seed in range(count)])
    together = render(drawings, bits(*range(count)), Scene())
    alone = render(drawings[which : which + 1], bits(which), Scene())
    assert (together[which] == alone[0]).all()


def test_a_still_scene_shows_the_drawing_itself():
    given_drawing = drawing(3)
    given_drawing[..., 3] = 255
    picture = render(given_drawing[None], bits(1), STILL)[0]
    assert (picture == given_drawing[..., :3]).all()


def test_transparent_drawings_show_the_background():
    nothing = np.zeros((3, 48, 48, 4), dtype=np.uint8)
    assert (render(nothing, bits(1, 2, 3), STILL) == 255).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(5, 60))
def test_drawings_of_any_side(seed, side):
    picture = render(drawing(seed, side)[None], bits(seed), Scene())
    assert picture.shape == (1, SIZE, SIZE, 3)
    assert picture.dtype == np.uint8


def test_size_is_that_of_the_drawing_in_the_picture():
    black = np.zeros((1, 48, 48, 4), dtype=np.uint8)
    black[..., 3] = 255
    for size in (50, 75, 100):
        picture = render(black, bits(1), Scene(size=(size, size), turn=0, shift=0, tint=0, paper=100, blur=0, noise=0))[
            0
        ]
        assert abs((picture[24, :, 0] < 128).sum() - 48 * size / 100) <= 1


def test_a_turn_keeps_the_middle():
    dot = np.zeros((20, 48, 48, 4), dtype=np.uint8)
    dot[:, 21:27, 21:27, 3] = 255
    turned = render(
        dot, bits(*range(20)), Scene(size=(100, 100), turn=180, shift=0, tint=0, paper=100, blur=0, noise=0)
    )
    assert (turned[:, 23:25, 23:25] == 0).all()


def test_no_pictures_at_all():
    assert render(np.zeros((0, 48, 48, 4), np.uint8), np.zeros((0, 24), np.uint64), Scene()).shape == (0, 48, 48, 3)


DIGEST = "e1eb9af0e22054d9999178b0a17fa080b02082355261c46c690b247c7123ad8f"
