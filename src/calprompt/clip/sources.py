"""Where a backbone's weights are: in the package, a file or folder, a row of open_clip's table, or a hub's repository.

Files in a local cache are used without asking the network. Without either, the error says why nothing could be
downloaded, where it would have come from, how to get it on another machine, and what can be used instead.

Libraries for downloads try again and again, or wait for ever, where a firewall swallows what is sent. So a host is
asked for a sign of life first: a connection, and an answer of any kind.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import re
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from calprompt.clip.architecture import Architecture, known_architectures
from calprompt.clip.open_clip_files import model_configs, open_clip_module
from calprompt.clip.preprocessing import Preprocessing
from calprompt.clip.weights import INDEX_SUFFIX, SUFFIXES
from calprompt.errors import BackboneError, CalpromptError, DamagedFileError, NotFoundError, Parameter
from calprompt.files import file_digest, read_json
from calprompt.pocket import FOR_PHOTOGRAPHS, MODELS, TEXT_TOWERS
from calprompt.registry import unknown
from calprompt.text import nearest, shorten

HUB = "hf-hub:"
HUB_NAME = "Hugging Face"
CONFIGS = {"open_clip": "open_clip_config.json", "huggingface": "config.json"}
PREPROCESSOR = "preprocessor_config.json"
_WEIGHTS = (  # in order of preference, where a folder has several
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
    "model.safetensors",
    f"model.safetensors{INDEX_SUFFIX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX_SUFFIX}",
)


@dataclass(frozen=True)
class Source:
    """Where the weights are, and what is known about them beforehand; `text` is where those of the text tower are."""

    path: Path
    name: str
    text: Path | None = None
    architecture: Architecture | None = None
    preprocessing: Preprocessing | None = None


def find(spec: str | Path, cache_dir: Path | None = None, *, download: bool = True) -> Source:
    """The weights that a spec names."""
    if isinstance(spec, Path):
        return _local(spec)
    if spec in MODELS:
        return replace(_local(MODELS[spec]), name=spec, text=TEXT_TOWERS.get(spec))
    if spec.startswith(HUB):
        return _hub(spec, cache_dir, download)
    name, _, tag = spec.partition("/")
    if open_clip_module("pretrained").is_pretrained_cfg(name, tag):
        return _named(name, tag, cache_dir, download)
    path = Path(spec).expanduser()
    if (spec and path.exists()) or path.suffix in SUFFIXES or spec.startswith((".", "/", "~")) or spec.count("/") > 1:
        return _local(path)
    raise _unknown_name(name, tag, spec)


def _unknown_name(name: str, tag: str, spec: str) -> BackboneError:
    if name.strip().lower() in MODELS:
        why = "they have no tags" if tag else "without blanks, in small letters"
        embedded = ", ".join(map(repr, MODELS))
        return BackboneError(f"unknown backbone {spec!r}. The models in the package are {embedded}: {why}.")
    pretrained = open_clip_module("pretrained")
    tags = pretrained.list_pretrained_tags_by_model(name)
    if tags and not tag:
        return BackboneError(f"which weights of {name}? Write one of {', '.join(f'{name}/{each}' for each in tags)}.")
    if tags:
        twin = name.removesuffix("-quickgelu") if name.endswith("-quickgelu") else f"{name}-quickgelu"
        error = unknown(f"pretrained tag of {name}", tag, tags)
        hint = f" {twin}/{tag} exists: it has the other activation." if pretrained.is_pretrained_cfg(twin, tag) else ""
        return BackboneError(f"{error}{hint}")
    dashed = f"{spec.replace('/', '-').replace('@', '-').removesuffix('px')}-quickgelu"
    if pretrained.is_pretrained_cfg(dashed, "openai"):  # OpenAI's own spelling, ViT-B/16
        return BackboneError(f"unknown backbone {spec!r}. OpenAI's {spec} is '{dashed}/openai'.")
    known = {each for each, _ in pretrained.list_pretrained()} & set(known_architectures()) | set(MODELS)
    repository = f"; a Hugging Face repository as '{HUB}{spec}'" if tag else ""
    return BackboneError(
        f"{unknown('backbone', name, known)} Write a pretrained model as '<name>/<tag>'{repository}; "
        "a file or folder by its path (there is none of that name)."
    )


def _local(path: Path) -> Source:
    path = path.expanduser()
    if path.is_dir():
        files = sorted(each.name for each in path.iterdir() if each.is_file())
        weights = _choose(files, path)
        if weights is None:
            raise BackboneError(
                f"no weights in folder {path}: expected {', '.join(_WEIGHTS[:4])}, … or one file ending in "
                f"{', '.join(SUFFIXES)}; found {shorten(files) or 'nothing'}"
            )
        return Source(path / weights, name=path.resolve().name)
    if not path.exists():
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        near = nearest(path.name, [each.name for each in folder.iterdir()])
        hint = f" Did you mean {folder / near}?" if near and folder == path.absolute().parent else ""
        raise NotFoundError(f"no file or folder {path}.{hint}")
    return Source(path, name=path.stem)


def _choose(files: Iterable[str], where: Any) -> str | None:
    """The weights among file names: a well-known name, else the only file of a known kind."""
    files = list(files)
    for name in _WEIGHTS:
        if name in files:
            return name
    others = [name for name in files if name.endswith(SUFFIXES) and "/" not in name]
    if len(others) > 1:
        raise BackboneError(f"several weights files in {where}: {shorten(others)}. Pass the path of one of them.")
    return others[0] if others else None


def _named(name: str, tag: str, cache_dir: Path | None, download: bool) -> Source:
    spec = f"{name}/{tag}"
    with about(f"backbone {spec!r}"):
        architecture = Architecture.from_open_clip(model_configs()[name])
        row = open_clip_module("pretrained").get_pretrained_cfg(name, tag)
        quick = bool(row.get("quick_gelu", False))
        if quick != architecture.quick_gelu:
            twin = f"{name}-quickgelu" if quick else name.removesuffix("-quickgelu")
            raise BackboneError(
                f"these weights were trained with {'QuickGELU' if quick else 'GELU'} and the model {name} has "
                f"{'GELU' if quick else 'QuickGELU'}. Use '{twin}/{tag}'."
            )
        preprocessing = Preprocessing.from_open_clip(row, architecture.image_size)
    return Source(
        _table_file(row, spec, cache_dir, download), spec, architecture=architecture, preprocessing=preprocessing
    )


def _table_file(row: Mapping[str, Any], spec: str, cache_dir: Path | None, download: bool) -> Path:
    """The file of a row of open_clip's table: from a cache, else from the hub, else from its address."""
    import huggingface_hub

    if row.get("file"):
        return Path(row["file"])
    repository, file = os.path.split(row.get("hf_hub") or "")
    hub_cache, url_cache = download_folders(cache_dir)
    for candidate in [file] if file else [_WEIGHTS[0], _WEIGHTS[2]]:
        cached = huggingface_hub.try_to_load_from_cache(repository, candidate, hub_cache) if repository else None
        if isinstance(cached, str):
            return Path(cached)
    addresses, reasons = {}, []
    if row.get("url"):
        addresses[row["url"]] = False
        earlier = url_cache / os.path.basename(row["url"])
        if earlier.is_file():
            if _has_digest_of(row["url"], earlier):
                return earlier
            reasons.append(f"{earlier} is not that file (its digest differs)")
            if not download:
                raise DamagedFileError(reasons[0])
    if not download:
        raise NotFoundError(f"the weights of {spec} are not on this machine")
    if repository:
        page = f"{huggingface_hub.constants.ENDPOINT}/{repository}/resolve/main/{file or _WEIGHTS[0]}"
        addresses = {page: True, **addresses}
    for address, hub in addresses.items():
        fetch = functools.partial(
            open_clip_module("pretrained").download_pretrained,
            dict(row),
            prefer_hf_hub=hub,
            cache_dir=str(hub_cache if hub else url_cache),
        )
        path, reason = attempt(address, fetch)
        if path is not None:
            return Path(path)
        reasons.append(reason)
    hosts = [HUB_NAME if hub else urllib.parse.urlsplit(address).hostname for address, hub in addresses.items()]
    raise _not_downloaded(
        f"the weights of {spec}",
        reasons,
        f"open_clip gets them from {' or '.join(map(str, hosts))}; earlier downloads were looked for in "
        f"{' and '.join(dict.fromkeys([str(hub_cache), str(url_cache)]))}.",
        f"On a machine with a network, download {' or '.join(addresses)}, bring the file here, and give it with ",
        Parameter("backbone", "PATH"),
        " and ",
        Parameter("config", repr(spec)),
        ".",
    )


def _not_downloaded(what: str, reasons: list[str], origin: str, *remedy: str | Parameter) -> NotFoundError:
    pieces = [f"could not download {what}: {'; '.join(dict.fromkeys(reasons))}\n  {origin}\n  ", *remedy]
    if any(reason.startswith(UNREACHED) for reason in reasons) and not proxy_variables():
        pieces.append("\n  If this machine reaches the network through a proxy, set HTTPS_PROXY to its address.")
    suggested = Parameter("backbone", FOR_PHOTOGRAPHS)
    pieces += ["\n  To try things out without a download, ", suggested, " is a small CLIP that comes with calprompt."]
    return NotFoundError(*pieces)


def _has_digest_of(url: str, path: Path) -> bool:
    """Whether a file has the sha256 that OpenAI and open_clip write into their addresses; true where there is none."""
    promised = re.search(r"/([0-9a-f]{64})/|-([0-9a-f]{8})\.pth?$", url)
    if promised is None:
        return True
    return file_digest(path).startswith(promised[1] or promised[2])


def _hub(spec: str, cache_dir: Path | None, download: bool) -> Source:
    import huggingface_hub

    repository, _, revision = spec.removeprefix(HUB).partition("@")
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repository):
        raise BackboneError(f"{spec!r} is not of the form '{HUB}owner/name' or '{HUB}owner/name@revision'")
    folder = download_folders(cache_dir)[0]
    options: dict[str, Any] = {"repo_id": repository, "revision": revision or None, "cache_dir": folder}
    with contextlib.suppress(FileNotFoundError, huggingface_hub.errors.HFValidationError):
        snapshot = Path(huggingface_hub.snapshot_download(**options, local_files_only=True))
        files = [each.name for each in snapshot.iterdir()]
        weights = _choose(files, repository)
        if weights is not None and not set(files).isdisjoint(CONFIGS.values()):
            return Source(snapshot / weights, name=spec)
    if not download:
        raise NotFoundError(f"the files of {spec} are not on this machine")
    page = f"{huggingface_hub.constants.ENDPOINT}/{repository}"
    path, reason = attempt(page, lambda: _download(repository, options))
    if path is None:
        at = f" --revision {revision}" if revision else ""
        raise _not_downloaded(
            spec,
            [reason],
            f"It comes from {HUB_NAME} ({page}): weights ({', '.join(_WEIGHTS[:4])}, …) and "
            f"{' or '.join(CONFIGS.values())}. An earlier download was looked for in {folder}.",
            f"On a machine with a network, run 'hf download {repository}{at} --local-dir FOLDER', bring the folder "
            "here, and give it with ",
            Parameter("backbone", "FOLDER"),
            ".",
        )
    return Source(Path(path), name=spec)


def _download(repository: str, options: dict[str, Any]) -> str:
    import huggingface_hub

    files = huggingface_hub.HfApi().list_repo_files(repository, revision=options["revision"])
    weights = _choose(files, repository)
    if weights is None:
        raise BackboneError(f"no weights in repository {repository}: found {shorten(sorted(files))}")
    wanted = [name for name in (*CONFIGS.values(), PREPROCESSOR) if name in files]
    if weights.endswith(INDEX_SUFFIX):
        stem, suffix = os.path.splitext(weights.removesuffix(INDEX_SUFFIX))
        wanted += [name for name in files if re.fullmatch(rf"{stem}-\d+-of-\d+{re.escape(suffix)}", name)]
    for name in wanted:  # the weights last: where they are in the cache, the rest is too
        huggingface_hub.hf_hub_download(filename=name, **options)
    return huggingface_hub.hf_hub_download(filename=weights, **options)


def download_folders(cache_dir: Path | None = None) -> tuple[Path, Path]:
    """Where downloads from the hub and from plain addresses are kept."""
    import huggingface_hub

    return (
        cache_dir or Path(huggingface_hub.constants.HF_HUB_CACHE),
        cache_dir or Path("~/.cache/clip").expanduser(),
    )


@contextlib.contextmanager
def about(subject: Any) -> Iterator[None]:
    """Puts the file or name that an error is about in front of it."""
    try:
        yield
    except CalpromptError as error:
        raise type(error)(f"{subject}: ", error) from error


def downloaded_backbones(cache_dir: Path | None = None) -> Iterator[tuple[str, Path | str]]:
    """Every name of open_clip's table and every repository of a CLIP whose weights are in a local cache.

    Beside each is the path of the weights, or what is wrong with them.
    """
    for spec in _candidates(cache_dir):
        try:
            source = find(spec, cache_dir, download=False)
        except NotFoundError:
            continue
        except DamagedFileError as error:
            yield spec, str(error)
        except CalpromptError:  # no model that calprompt can use
            continue
        else:
            if not spec.startswith(HUB) or _is_clip(source.path.parent):
                yield spec, source.path


def _candidates(cache_dir: Path | None) -> Iterator[str]:
    for name, tag in open_clip_module("pretrained").list_pretrained():
        yield f"{name}/{tag}"
    for folder in sorted(download_folders(cache_dir)[0].glob("models--*--*")):
        yield f"{HUB}{'/'.join(folder.name.split('--')[1:])}"


def _is_clip(folder: Path) -> bool:
    """Whether a config beside the weights says so: repositories of all kinds lie in this cache."""
    if (folder / CONFIGS["open_clip"]).is_file():
        return True
    with suppress(CalpromptError, AttributeError):
        return is_clip_config(read_json(folder / CONFIGS["huggingface"]))
    return False


def is_clip_config(config: Mapping[str, Any]) -> bool:
    """Whether a config.json of Hugging Face is that of a CLIP."""
    return bool(config.get("model_type") == "clip")


T = TypeVar("T")
TIMEOUT = 5.0  # seconds to wait for a connection, and as many for an answer
SERVER_ERRORS = (500, 502, 503, 504)  # answers of a server or proxy that is out of order
UNREACHED = "no connection to"  # how the reason begins if nothing was reached
OFFLINE = "HF_HUB_OFFLINE"
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def attempt(address: str, download: Callable[[], T]) -> tuple[T | None, str]:
    """Download something, if its host can be reached."""
    reason = f"{OFFLINE} is set, which forbids downloads" if is_offline() else obstacle(address)
    if reason:
        return None, reason
    try:
        return download(), ""
    except CalpromptError:
        raise
    except Exception as error:  # servers and libraries raise many kinds
        return None, in_words(error)


def is_offline() -> bool:
    """Whether the user has forbidden downloads, before Python started or since."""
    import huggingface_hub

    now = os.environ.get(OFFLINE, "0").upper() not in ("", "0", "NO", "OFF", "FALSE")
    return now or bool(huggingface_hub.constants.HF_HUB_OFFLINE)


def proxy_variables() -> list[str]:
    """Environment variables that name a proxy, such as HTTPS_PROXY."""
    return [name for name in PROXIES if os.environ.get(name) or os.environ.get(name.lower())]


def obstacle(address: str) -> str:
    """Why the host of an address cannot be reached; empty if it answers at all."""
    host = urllib.parse.urlsplit(address)
    proxy = _proxy(host)
    gate = proxy or host
    where = f"the proxy {gate.hostname}" if proxy else str(gate.hostname)
    port = gate.port or (80 if gate.scheme == "http" else 443)
    try:
        _in_time(lambda: socket.create_connection((gate.hostname or "", port), timeout=TIMEOUT).close())
    except TimeoutError:
        return f"{UNREACHED} {where} within {TIMEOUT:g} s"
    except OSError as error:
        return f"{UNREACHED} {where} ({error.strerror or error})"
    try:
        status = _in_time(lambda: _status(address))
    except TimeoutError:
        return f"{where} takes connections but does not answer within {TIMEOUT:g} s"
    except Exception as error:  # of whichever library the hub's client is made with
        return f"no answer from {host.hostname}{f' through {where}' if proxy else ''} ({in_words(error)})"
    return f"{where} answers with the error {status}" if status in SERVER_ERRORS else ""


def in_words(error: BaseException) -> str:
    """The reason why a download failed, on one line."""
    from huggingface_hub.utils import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    known: dict[type[Exception], str] = {  # the first that fits
        GatedRepoError: "its owner has to let you in; ask on its page, then log in with 'hf auth login'",
        RepositoryNotFoundError: "there is no such repository, or it is private",
        RevisionNotFoundError: "the repository has no such revision",
    }
    chain: list[BaseException] = []
    inner: BaseException | None = error
    while inner is not None and inner not in chain:
        chain.append(inner)
        inner = inner.__cause__ or inner.__context__
    for kind, words in known.items():
        if any(isinstance(each, kind) for each in chain):
            return words
    reason = error.reason if type(error) is urllib.error.URLError else error  # its subclass has a status to tell
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return (text.strip() or type(error).__name__).splitlines()[0]


def _proxy(host: urllib.parse.SplitResult) -> urllib.parse.SplitResult | None:
    proxies = urllib.request.getproxies()
    proxy = proxies.get(host.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(host.hostname or ""):
        return None
    return urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _status(address: str) -> int:
    """The status that a host answers with, asked in the way in which the download asks."""
    import huggingface_hub

    longer = 2 * TIMEOUT  # so that it is `_in_time` that ends it
    if address.startswith(huggingface_hub.constants.ENDPOINT):
        return int(huggingface_hub.utils.get_session().head(address, timeout=longer).status_code)
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=longer) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def _in_time(call: Callable[[], T]) -> T:
    """The result or error of a call, or TimeoutError if it takes too long.

    Looking up a host's name has no time limit of its own, and a host with many addresses is tried at each of them. A
    call that takes too long is left behind in its thread, which does not keep the process from ending.
    """
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        value, error = answers.get(timeout=TIMEOUT)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return value
