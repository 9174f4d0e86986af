"""Which sketches and photographs the model may see in pretraining; the datasets take theirs from the rest.

Drawings of emoji need no such rule: the datasets are drawn by studios that pretraining never uses.
"""

from __future__ import annotations

SKETCHES = 15  # the first sketches of each class are seen in pretraining
PHOTOS = 500  # the first training photographs of each class; the datasets use the test photographs
CLOTHES = 500  # the first photographs of each class
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = ("t-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")  # none are seen
