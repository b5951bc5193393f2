"""Locations of the datasets on disk and on the network; functions that find and verify their files."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..core import FedUnlearnError

SETTING = "FEDUNLEARN_DATA"


@dataclass(frozen=True)
class Source:
    """The locations of a dataset on disk and on the network, with the hashes of its files."""

    title: str
    folders: tuple[str, ...]
    """Folders in the data directory that may contain it; downloads are unpacked into the first."""
    files: Mapping[str, str]
    """File name -> md5 of its content (decompressed if stored as .gz)."""
    downloads: Mapping[str, str]
    """URL -> md5 of the file."""
    system: Path | None = None
    """Folder of an operating system package, if there is one."""


def _idx(base: str, suffix: str, train: tuple[str, str], test: tuple[str, str]) -> dict[str, str]:
    """Return the four files of an MNIST-like dataset with their hashes, images before labels."""
    kinds = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    names = [f"{base}{kind}-ubyte{suffix}" for kind in kinds]
    return dict(zip(names, train + test, strict=True))


SOURCES: dict[str, Source] = {
    "mnist": Source(
        "MNIST",
        ("MNIST/raw", "MNIST", "mnist", ""),
        _idx(
            "",
            "",
            ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"),
            ("2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
        ),
        _idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ".gz",
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432"),
            ("9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
    ),
    "fmnist": Source(
        "Fashion-MNIST",
        ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", ""),
        _idx(
            "",
            "",
            ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"),
            ("8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
        _idx(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ".gz",
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe"),
            ("bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        # Debian's dataset-fashion-mnist; the .gz files differ from the published ones, but not their content.
        system=Path("/usr/share/datasets/fashion-mnist"),
    ),
    "cifar10": Source(
        "CIFAR-10",
        ("cifar-10-batches-py", ""),
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        {"https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    ),
    "cifar100": Source(
        "CIFAR-100",
        ("cifar-100-python", ""),
        {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        {"https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
    ),
}
SOURCES["cifar100-test"] = replace(
    SOURCES["cifar100"],
    title="the test split of CIFAR-100",
    files={"test": SOURCES["cifar100"].files["test"]},
)


def data_directory() -> Path:
    """Return the folder for downloads and lookups: FEDUNLEARN_DATA, else the platform's cache folder."""
    setting = os.environ.get(SETTING)
    if not setting:
        return user_cache(SETTING) / "data"
    folder = Path(setting).expanduser()
    if not folder.is_dir():
        raise FedUnlearnError(
            f"{SETTING} names {folder}, which is not a folder: create it, or unset {SETTING}", code="missing"
        )
    return folder


def user_cache(setting: str) -> Path:
    """Return the cache folder of the platform, the default if the variable ``setting`` names no folder."""
    try:
        from platformdirs import user_cache_path
    except ImportError:
        raise FedUnlearnError(
            f"the default cache folder needs platformdirs: pip install 'fedunlearn[cli]', "
            f"or set {setting} to a folder",
            code="package",
        ) from None
    return user_cache_path("fedunlearn")


def locate(name: str, directory: Path | None = None) -> Path | None:
    """Return the first folder with all files: in ``directory``, else the data directory or the system."""
    for place in _places(name, directory):
        if all(_stored(place, file) for file in SOURCES[name].files):
            return place
    return None


def find(name: str, directory: Path | None = None) -> Path:
    """Return the folder from ``locate``, or raise an error that says what is missing and where."""
    folder = locate(name, directory)
    if folder is not None:
        return folder
    source = SOURCES[name]
    advice = (
        f"run `fedunlearn data get {name}` or set {SETTING} to the folder that holds it"
        if directory is None
        else f"name another folder, or run `fedunlearn data get {name}` and name none"
    )
    for place in _places(name, directory):
        missing = [file for file in source.files if not _stored(place, file)]
        if len(missing) < len(source.files):
            enough = [other for other in SOURCES if other != name and locate(other, place) == place]
            hint = f", or use dataset {enough[0]!r}, whose files are all there" if enough else ""
            raise FedUnlearnError(
                f"dataset {name!r} ({source.title}) lacks {', '.join(missing)} in {place}: {advice}{hint}",
                code="missing",
            )
    searched = [directory or data_directory()]
    searched += [source.system] if source.system and directory is None else []
    raise FedUnlearnError(
        f"dataset {name!r} ({source.title}: {', '.join(source.files)}) was not found "
        f"in {' or '.join(map(str, searched))}: {advice}",
        code="missing",
    )


def read(name: str, folder: Path, file: str) -> bytes:
    """Return the decompressed content of one file, verified against the published md5."""
    path = _stored(folder, file)
    fix = f"delete it and run `fedunlearn data get {name}`"
    try:
        content = (path or folder / file).read_bytes()
        if path and path.suffix == ".gz":
            content = gzip.decompress(content)
    except (EOFError, zlib.error, OSError) as error:
        raise FedUnlearnError(
            f"{path or folder / file} cannot be read ({error}): {fix}", code="file"
        ) from error
    expected, found = SOURCES[name].files[file], hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        other = next((key for key, source in SOURCES.items() if found in source.files.values()), None)
        raise FedUnlearnError(
            f"{path} {f'belongs to dataset {other!r}' if other else 'is damaged'}: as {file} of "
            f"{SOURCES[name].title} it should have md5 {expected} but has {found}; {fix}",
            code="damaged",
        )
    return content


def _places(name: str, directory: Path | None) -> list[Path]:
    source = SOURCES[name]
    below = data_directory() if directory is None else Path(directory).expanduser()
    system = [source.system] if source.system and directory is None else []
    return [below / folder for folder in source.folders] + system


def _stored(folder: Path, file: str) -> Path | None:
    return next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)
