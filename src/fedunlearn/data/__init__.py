"""Datasets, partitions, the backdoor, and the clients made from them."""

from .backdoor import Trigger, poison, trigger, triggered
from .canaries import draw_canaries, plant, plant_canaries
from .datasets import Dataset, load, where
from .download import fetch
from .partitions import pools
from .population import PUBLIC, Population, check_reserved, populate, reserve
from .sources import data_directory

__all__ = [
    "PUBLIC",
    "Dataset",
    "Population",
    "Trigger",
    "check_reserved",
    "data_directory",
    "draw_canaries",
    "fetch",
    "load",
    "plant",
    "plant_canaries",
    "poison",
    "pools",
    "populate",
    "reserve",
    "trigger",
    "triggered",
    "where",
]
