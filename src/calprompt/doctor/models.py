"""Which CLIPs this machine has, whether the one in the package is what it should be and sees, and how fast it is; and
all tuners on an accelerator against the same steps on the CPU.

The speed of the pocket is measured, that of a ViT-B/16 is estimated from two of its blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import torch
from PIL import Image

from calprompt import pocket
from calprompt.class_names import fill_template
from calprompt.clip.architecture import Architecture
from calprompt.clip.backbone import Backbone, unit
from calprompt.clip.load import load_with_files
from calprompt.clip.model import encode_image
from calprompt.clip.open_clip_files import model_configs
from calprompt.clip.sources import OFFLINE, download_folders, downloaded_backbones, is_offline, proxy_variables
from calprompt.doctor.examination import Finding, describe, note, ok, problem
from calprompt.doctor.installation import disk_space, unwritable
from calprompt.errors import CalpromptError, DamagedFileError
from calprompt.text import format_size, plural

USUAL = "ViT-B-16-quickgelu/openai"  # what papers and these pages use
REINSTALL = "The files of the package are damaged; install it again: pip install --force-reinstall calprompt"
OTHER_TORCH = "torch computes something else here than elsewhere; install another version of it, or update the system."
DATASET, LABEL, NUMBER = "photos", 0, 5  # a picture that the pocket recognises with ease


def check_backbones() -> Iterator[Finding]:
    """CLIPs that were downloaded before, and whether others could be."""
    found = set()
    for spec, weights in downloaded_backbones():
        found.add(spec)
        if isinstance(weights, str):
            yield note(spec, weights, "Remove that file; it is downloaded again when it is needed.")
        else:
            yield ok(spec, f"{format_size(weights.stat().st_size)} in {weights}")
    if USUAL not in found:
        yield note(
            USUAL,
            "not on this machine" + ("" if is_offline() else "; it is downloaded when it is first used"),
            "Without a network, download the file elsewhere and give it with --backbone PATH; the error of a command "
            "that needs it says which file. --backbone pocket-photo needs no download.",
        )
    hub = download_folders()[0]
    obstacle = unwritable(hub)
    if obstacle:
        yield note("downloads", f"{hub}: {obstacle}", "Set HF_HUB_CACHE to a folder that can be written to.")
    else:
        yield disk_space("downloads", hub)
    if is_offline():
        yield note("network", f"{OFFLINE} is set, so nothing is downloaded", "Unset it to download a CLIP.")
    elif proxy_variables():
        yield ok("network", f"through the proxy that {' and '.join(proxy_variables())} names; not tried")


def check_pocket() -> Iterator[Finding]:
    """The model and the pictures in the package."""
    for name, expected in pocket.FINGERPRINTS.items():
        start = time.monotonic()
        try:
            found = load_embedded(name).fingerprint
        except CalpromptError as error:
            yield problem(f"{name} model", describe(error), REINSTALL)
            return
        taken = time.monotonic() - start
        if found != expected:
            value = f"fingerprint {found[:12]}, expected {expected[:12]}"
            yield problem(f"{name} model", value, REINSTALL)
            return
        yield ok(f"{name} model", f"loads in {taken:.1f} s; fingerprint {found[:12]} is right")
    try:
        pictures = sum(sum(pocket.sheet(name).counts.values()) for name in pocket.names())
    except DamagedFileError as error:
        yield problem("pocket pictures", describe(error), REINSTALL)
        return
    yield ok("pocket pictures", f"{pictures:,} in {plural(len(pocket.names()), 'dataset')}")
    yield self_test(load_embedded("pocket"))


@cache
def load_embedded(name: str) -> Backbone:
    """A model of the package, loaded once, without a trace in the cache folder."""
    return load_with_files(name)[0]


@torch.no_grad()
def self_test(backbone: Backbone) -> Finding:
    """A picture through the whole way: pixels, image tower, comparison with the names of the classes."""
    sheet = pocket.sheet(DATASET)
    name = sheet.class_names[LABEL]
    pixels = next(each for label, number, each in sheet.pictures("test") if (label, number) == (LABEL, NUMBER))
    feature = backbone.encode_image(backbone.preprocessing.evaluation()(Image.fromarray(pixels))[None])
    if feature.shape != (1, backbone.embed_dim):
        size = " x ".join(map(str, feature.shape))
        return problem("self test", f"a picture gave {size} numbers, expected 1 x {backbone.embed_dim}", REINSTALL)
    if not feature.isfinite().all():
        return problem("self test", "a picture gave numbers that are not finite", OTHER_TORCH)
    cosines = unit(feature) @ backbone.zero_shot(sheet.class_names, sheet.record["template"]).T
    probabilities = (backbone.logit_scale * cosines).softmax(1)[0]
    guess, share = sheet.class_names[int(probabilities.argmax())], 100 * float(probabilities[LABEL])
    if guess != name:
        return problem("self test", f"a picture of class {name!r} was taken for {guess!r}", OTHER_TORCH)
    value = f"a picture became {backbone.embed_dim} finite numbers, and was recognised as {name!r} ({share:.0f} %)"
    return ok("self test", value)


SECONDS = 0.6  # for each measurement
BATCH = 64  # images, or sentences
VIT_B_16 = Architecture.from_open_clip(model_configs()[USUAL.partition("/")[0]])
PRODUCTS = {"patches": 0.116, "block": 1.449, "last block": 0.239}  # billions, for an image


@torch.no_grad()
def check_speed() -> Iterator[Finding]:
    """Images and sentences per second, in about two seconds."""
    backbone = load_embedded("pocket")
    size = backbone.preprocessing.size
    images = torch.randn(BATCH, 3, size, size)
    names = pocket.sheet("objects").class_names[:BATCH]
    sentences = [fill_template("a picture of a {}.", name) for name in names]
    with backbone.limited_threads():  # one, as when image features are computed: each core works on a batch of its own
        pace = BATCH * per_second(lambda: backbone.encode_image(images))
        yield ok("pocket, images", f"{pace:,.0f} images per second on one core (measured)")
        pace = len(sentences) * per_second(lambda: backbone.encode_strings(sentences, warn=False))
        yield ok("pocket, texts", f"{pace:,.0f} class names per second on one core (measured)")
        pace = estimated_images_per_second()
    shown = f"{pace:,.0f}" if pace >= 10 else f"{pace:.1f}"
    yield ok("ViT-B/16, images", f"about {shown} images per second on one core (estimated from two of its blocks)")


def per_second(call: Callable[[], object], seconds: float = SECONDS) -> float:
    """How often a call can be made in a second: the median, since other programs come and go."""
    call()  # the first takes longer
    times: list[float] = []
    while sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1 / sorted(times)[len(times) // 2]


@torch.no_grad()
def estimated_images_per_second(images: int = 2) -> float:
    """The estimated speed of a ViT-B/16: two of its blocks are run with random weights, the others are calculated.

    The last block is cheaper than the others, since only the class token is read out of it.
    """
    layers = VIT_B_16.vision_layers
    assert isinstance(layers, int)
    tower = replace(VIT_B_16, vision_layers=2, text_layers=1).build().visual.to_empty(device="cpu").eval()
    for weight in tower.parameters():
        weight.normal_(std=0.02)
    pixels = torch.randn(images, 3, VIT_B_16.image_size, VIT_B_16.image_size)
    two, all_others = sum(PRODUCTS.values()), (layers - 2) * PRODUCTS["block"]
    return images * per_second(lambda: encode_image(tower, pixels)) * two / (two + all_others)


STEPS, WARM_UP, STEP_IMAGES = 20, 3, 8
AGREEMENT = {
    None: 1e-3,
    torch.bfloat16: 0.02,
    torch.float16: 0.01,
}  # relative, of losses over 20 steps: a few roundings
REPORT = "Please report this with the output of 'calprompt doctor --gpu --json'."


def check_gpu() -> Iterator[Finding]:
    """Verify the accelerator that torch finds, if there is one."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        yield note("GPU", "torch finds no GPU, so there is nothing to verify", "Install a build of torch for it.")
        return
    yield from verify_device(str(accelerator))


def verify_device(device: str) -> Iterator[Finding]:
    """Train every tuner of the pocket on the CPU and on a device, in float32 and in half precision on the device."""
    from calprompt import tuners

    host = load_embedded("pocket")
    there = host.to(device)
    for name in tuners.available():
        if not tuners.get(name).learns:
            continue
        expected = None
        for dtype, tolerance in AGREEMENT.items():
            label = f"{name}, {str(dtype or torch.float32).removeprefix('torch.')}"
            try:
                expected = expected or train_steps(name, host)
                found = train_steps(name, there.view(autocast=dtype))
            except (CalpromptError, RuntimeError) as error:
                yield problem(label, " ".join(str(error).split())[:300], REPORT)
                continue
            pairs = zip(expected[0], found[0], strict=True)
            gap = max(abs(theirs - ours) / max(abs(ours), 1e-6) for ours, theirs in pairs)
            value = (
                f"losses within {gap:.1e} of the CPU's (up to {tolerance:g} is rounding); "
                f"{found[1]:.1f} ms a step, {expected[1]:.1f} ms on the CPU"
            )
            yield ok(label, value) if gap <= tolerance else problem(label, value, REPORT)


def train_steps(name: str, backbone: Backbone) -> tuple[list[float], float]:
    """Losses of steps of a tuner with TCPT on random images, the same on every device, and milliseconds a step."""
    from calprompt import tuners
    from calprompt.losses import Objective
    from calprompt.training import LossScale, mixed, read_steps, training_step

    generator = torch.Generator().manual_seed(0)
    classes = pocket.sheet("objects").class_names[:10]
    tuner = tuners.create(name, backbone, classes)
    size = backbone.preprocessing.size
    shape = (3, size, size) if tuner.needs_pixels else (backbone.embed_dim,)
    images = torch.randn(STEP_IMAGES, *shape, generator=generator).to(backbone.device)
    labels = (torch.arange(STEP_IMAGES) % len(classes)).to(backbone.device)
    optimizer = torch.optim.SGD(tuner.parameters(), lr=0.002, momentum=0.9, weight_decay=5e-4)
    scale = LossScale(backbone.device) if backbone.computes_in == torch.float16 else None
    objective, losses, start = Objective.parse("tcpt"), [], 0.0
    for number in range(STEPS):
        if number == WARM_UP:
            start = time.perf_counter()
        step = training_step(tuner, optimizer, objective, images, labels, seed=mixed(0, number), scale=scale)
        losses += [row["loss"] for row in read_steps({number: step}, "step {}")]  # waits for the device
    return losses, 1000 * (time.perf_counter() - start) / (STEPS - WARM_UP)
