"""UCF101 as pictures: the middle frame of every video.

    UCF-101/ApplyEyeMakeup/v_….avi  ->  UCF-101-midframes/Apply_Eye_Makeup/v_….jpg

Of n frames it is number n // 2, counted from 0; the rule of the published frames is not known, so these may be a frame
off. JPEG of quality 95.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from calprompt.data.catalogue.layouts import SplitFile
from calprompt.data.catalogue.prepare import own_split
from calprompt.data.catalogue.raw import action_name
from calprompt.errors import DataError

if TYPE_CHECKING:
    from calprompt.data.catalogue.entry import Entry
    from calprompt.progress import Progress

VIDEOS, FRAMES = "UCF-101", "UCF-101-midframes"
QUALITY = 95


def ucf101_frames(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """Make the missing frames, and a split from the official lists if there is no fixed one."""
    layout = entry.layout
    assert isinstance(layout, SplitFile)
    videos = sorted((folder / VIDEOS).glob("*/*.avi"))
    if not videos and not (folder / FRAMES).is_dir():
        raise DataError(f"{folder / VIDEOS} has no videos; expected <action>/<video>.avi in it")
    frames = [(video, folder / FRAMES / action_name(video.parent.name) / f"{video.stem}.jpg") for video in videos]
    todo = [(video, frame) for video, frame in frames if not frame.is_file()]
    if todo:
        require_decoder()
    for done, (video, frame) in enumerate(todo, start=1):
        frame.parent.mkdir(parents=True, exist_ok=True)
        partial = frame.with_name(f".{frame.name}")
        middle_frame(video).save(partial, format="JPEG", quality=QUALITY)
        partial.replace(frame)
        progress("middle frames", done, len(todo), "")
    made = [f"made {len(todo):,} of {len(frames):,} frames in {folder / FRAMES}"]
    if not (folder / layout.file).is_file() and (folder / "ucfTrainTestlist").is_dir():
        made += own_split(entry, folder, progress)
    return made


def middle_frame(path: Path) -> Image.Image:
    """The middle one of a video's frames."""
    import av

    try:
        with av.open(str(path)) as video:
            frames = list(video.decode(video=0))
        image: Image.Image = frames[len(frames) // 2].to_image()
    except Exception as error:  # a damaged video makes decoders raise nearly anything
        raise DataError(f"{path} cannot be decoded: {error or type(error).__name__}; get it again") from error
    return image


def require_decoder() -> None:
    """Raise `DataError` if no video decoder is installed."""
    try:
        import av  # noqa: F401
    except ImportError as error:
        raise DataError(
            "decoding videos needs PyAV: pip install 'calprompt[video]'. Or get the middle frames that CoOp's page on "
            f"datasets links to, and unpack them as {FRAMES}/"
        ) from error
