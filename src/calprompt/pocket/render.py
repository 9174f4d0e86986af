"""Pictures of a drawing: turned, scaled and moved on a background, in whole numbers only.

    drawing [48, 48, 4] ──┐
                          ├── picture [48, 48, 3], the same bits on every machine
    random bits ──────────┘

Everything is an integer, positions in 1/256 of a pixel and colours in 1/256, so that no processor, compiler or library
can round differently. Sines come from a table of rounded numbers; random bits from PCG64, whose stream is fixed.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIZE = 48
BITS = 24  # random numbers that a picture takes
Pictures = NDArray[np.uint8]
Numbers = NDArray[np.int32]
_TOGETHER = 16  # pictures made in one go: more do not fit the processor's cache

_COS = np.array([round(math.cos(math.radians(angle)) * 65536) for angle in range(360)], dtype=np.int32)
_PLACES = 2 * np.arange(SIZE, dtype=np.int32) + 1 - SIZE  # of pixel centres from the middle, in half pixels


@dataclass(frozen=True)
class Scene:
    """How pictures vary; in per cent except `turn`, which is in degrees."""

    size: tuple[int, int] = (65, 95)  # smallest and largest side of the drawing, of the picture's side
    turn: int = 20  # largest rotation, either way
    shift: int = 8  # largest shift, either way, of the picture's side
    tint: int = 15  # each colour is multiplied by 100 ± tint
    clutter: int = 40  # strength of the texture of backgrounds
    paper: int = 10  # share of pictures on white
    blur: int = 20  # share of pictures that are blurred
    noise: int = 3  # largest noise, of full brightness


def random_bits(*names: object) -> NDArray[np.uint64]:
    """Random numbers [BITS] that depend on these names and on nothing else."""
    seed = int.from_bytes(hashlib.sha256("/".join(map(str, names)).encode()).digest()[:16], "big")
    return np.random.PCG64(seed).random_raw(BITS)


def render(drawings: Pictures, bits: NDArray[np.uint64], scene: Scene) -> Pictures:
    """Pictures [n, 48, 48, 3] from drawings [n, 48, 48, 4] and random bits [n, BITS]."""
    starts = range(0, len(drawings), _TOGETHER)
    parts = [_render(drawings[i : i + _TOGETHER], bits[i : i + _TOGETHER], scene) for i in starts]
    return np.concatenate(parts) if parts else np.zeros((0, SIZE, SIZE, 3), dtype=np.uint8)


def _render(drawings: Pictures, bits: NDArray[np.uint64], scene: Scene) -> Pictures:
    dice = _Dice(bits)
    ink = _pose(drawings, dice, scene)  # [n, 4, 48, 48], premultiplied
    ground = _background(dice, scene)  # [n, 3, 48, 48]
    colours = ink[:, :3] + ground * (255 - ink[:, 3:]) // 255
    colours = colours * (100 + dice.upto(scene.tint, 3, signed=True))[:, :, None, None] // 100
    blurred = dice.upto(99) < scene.blur
    if blurred.any():
        colours[blurred] = _blur(colours[blurred])
    if scene.noise:
        amplitude = dice.upto(255 * scene.noise // 100)[:, None, None, None]
        colours += amplitude * (_grain(dice) - 128) // 128
    return colours.clip(0, 255).astype(np.uint8).transpose(0, 2, 3, 1)


class _Dice:
    """Random whole numbers taken one after the other from the bits of each picture."""

    def __init__(self, bits: NDArray[np.uint64]) -> None:
        self._bits, self._next = bits, 0

    def __len__(self) -> int:
        return len(self._bits)

    def raw(self) -> NDArray[np.uint64]:
        self._next += 1
        return self._bits[:, self._next - 1]

    def upto(self, most: int, columns: int = 0, *, signed: bool = False) -> Numbers:
        """[n] or [n, columns] numbers from 0, or from -most, to most."""
        span = np.uint64(2 * most + 1 if signed else most + 1)
        raw = np.stack([self.raw() for _ in range(columns)], axis=1) if columns else self.raw()
        return ((raw >> np.uint64(16)) % span).astype(np.int32) - (most if signed else 0)


def _pose(drawings: Pictures, dice: _Dice, scene: Scene) -> Numbers:
    """The drawings turned, scaled and moved; colours multiplied by opacity."""
    n, side = len(drawings), drawings.shape[1]
    angle = dice.upto(scene.turn, signed=True) % 360
    size = scene.size[0] + dice.upto(scene.size[1] - scene.size[0])
    across, down = (dice.upto(2 * SIZE * scene.shift // 100, signed=True) for _ in range(2))
    zoom = 100 * side // SIZE  # a drawing of another side fills the picture at size 100
    cos, sin = (_COS[angle] * zoom // size)[:, None, None], (_COS[(angle + 270) % 360] * zoom // size)[:, None, None]
    x = _PLACES[None, None, :] - across[:, None, None]
    y = _PLACES[None, :, None] - down[:, None, None]
    middle = (side - 1) * 128
    columns, rows = ((cos * x + sin * y) >> 9) + middle, ((cos * y - sin * x) >> 9) + middle
    layers = drawings.transpose(0, 3, 1, 2).astype(np.int32)
    layers[:, :3] = layers[:, :3] * layers[:, 3:] // 255
    flat = np.pad(layers, ((0, 0), (0, 0), (1, 1), (1, 1))).ravel()
    start = (np.arange(4 * n) * (side + 2) ** 2).reshape(n, 4, 1, 1)
    left, top = ((places >> 8).clip(-1, side - 1) + 1 for places in (columns, rows))
    inside = (columns >= -256) & (columns < side * 256) & (rows >= -256) & (rows < side * 256)
    right_share, low_share = columns & 255, rows & 255
    corner = start + (top * (side + 2) + left)[:, None]
    total = np.zeros((n, 4, SIZE, SIZE), dtype=np.int32)
    for step, share in (
        (0, (256 - right_share) * (256 - low_share)),
        (1, right_share * (256 - low_share)),
        (side + 2, (256 - right_share) * low_share),
        (side + 3, right_share * low_share),
    ):
        total += flat.take(corner + step) * (share * inside)[:, None]
    return total >> 16


def _background(dice: _Dice, scene: Scene) -> Numbers:
    """[n, 3, 48, 48]: from one colour to another, with blots of a third; or white."""
    if scene.paper == 100:
        return np.full((len(dice), 3, SIZE, SIZE), 255, dtype=np.int32)
    first, second, third = (dice.upto(255, 3)[:, :, None, None] for _ in range(3))
    ramp = _blots(dice.raw(), 2)[:, None]
    blots = (_blots(dice.raw(), 7) * scene.clutter // 100)[:, None]
    ground = (first * (255 - ramp) + second * ramp) // 255
    ground = (ground * (255 - blots) + third * blots) // 255
    white = (dice.upto(99) < scene.paper)[:, None, None, None]
    return np.where(white, 255, ground)


def _blots(raw: NDArray[np.uint64], cells: int) -> Numbers:
    """[n, 48, 48] from 0 to 255: random values at the corners of cells x cells squares, and straight between them."""
    corners = _hash(raw, (cells + 1) ** 2).reshape(-1, cells + 1, cells + 1)
    places = np.arange(SIZE, dtype=np.int32) * cells * 256 // SIZE
    index, share = places >> 8, places & 255
    across = corners[:, :, index] * (256 - share) + corners[:, :, index + 1] * share
    down = across[:, index] * (256 - share)[None, :, None] + across[:, index + 1] * share[None, :, None]
    return down >> 16


def _grain(dice: _Dice) -> Numbers:
    return _hash(dice.raw(), SIZE * SIZE).reshape(-1, 1, SIZE, SIZE)


def _hash(raw: NDArray[np.uint64], count: int) -> Numbers:
    """[n, count] numbers from 0 to 255, by mixing each seed with 0, 1, 2, … (splitmix64)."""
    with np.errstate(over="ignore"):
        x = raw[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x >> np.uint64(56)).astype(np.int32)


def _blur(colours: Numbers) -> Numbers:
    """Weights 1 2 1 across and down."""
    padded = np.pad(colours, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    across = padded[..., :-2] + 2 * padded[..., 1:-1] + padded[..., 2:]
    return (across[:, :, :-2] + 2 * across[:, :, 1:-1] + across[:, :, 2:]) >> 4
