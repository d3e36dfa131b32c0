"""Twenty-two English novels, split by whole books."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from lockstep.data.archives import read_checked
from lockstep.data.corpus import Corpus
from lockstep.data.locations import find_archived, search_folders_in_words
from lockstep.errors import UserError

FOLDER = "english-novels"
ARCHIVES = ("english-novels.tar.xz", "english-novels.tar.gz", "english-novels.zip")

# In the order of their names; the sha256 of each book.
BOOKS = {
    "Cbronte_Jane_1847.txt": "ce594d8c21ffd4af00d7c6241cde91a7ae24b695f6b9af804f95ced050708e6a",
    "Cbronte_Shirley_1849.txt": "3b34d95d012a04836cf5779c59432bb3a059fbc62dd423d764f6ad1a7b4f961f",
    "Cbronte_Villette_1853.txt": "40615b45579bac18e6ada037faaf9d20a1896c6d2f39f06808df5d6d86bcf997",
    "Conrad_Nostromo_1904.txt": "47be6b6041c30b1ad74783b28bce1cfc0fdee6f5c52bb2f1287c08d1619b0316",
    "Dickens_Bleak_1853.txt": "dfe3a0a502f424f06396ee7db6d38cb7462f45c748b596c5f9670864727f49b4",
    "Dickens_Expectations_1861.txt": "f29a14aacb89d7ded121f269e1823a6c329181fc5269930f6bd130bb7255e6f2",
    "Dickens_Oliver_1839.txt": "d96fd7afc9c46815820c1d04790c8cd8fe908758a73df221ad987dc9b5ce1c20",
    "Doyle_Hound_1902.txt": "23b7708e11ea07b2ea2b70b7675b2c5f15a70de32687178c2209ae45df48f885",
    "Doyle_Micah_1889.txt": "2491e0043711feec132fb53b15d417cd12c1f37b032044e4ee5c0da395f83fa1",
    "Eliot_Adam_1859.txt": "834af16ae5a82328435f3cc4c97741df61528f315678105800e669f32ee4e742",
    "Eliot_Daniel_1876.txt": "57d3d659e8384b9a137dbbfbf9a2e43ab3413f695c256bc7ca2da89a4c0fd608",
    "Eliot_Felix_1866.txt": "8027b706fd97decbee70b8a10fac798018034932853ca03fc63e3119e126aafc",
    "Gaskell_Wives_1865.txt": "28abd94f47360df3e273f43aafcd33bc28fc7dafb7a099f396ea87a638acbaf2",
    "Hardy_Jude_1895.txt": "236f557a498778c73ee30047c2835bb0fa4691a5676d6819f7fbf30b4df3c40f",
    "Hardy_Madding_1874.txt": "ea6fbbf4a3403103a71e5ba32bc6a8827ae98fdb753431fa58c05b72378b2f50",
    "Hardy_Tess_1891.txt": "bce8233995e6e8bb0914b040237babf5e7e18c5b78942a1fc19a49d99de994a3",
    "Stevenson_Arrow_1888.txt": "f46afadec2dabadedae31107d6e74539859ed3d33ce21bf92effb874096dbed1",
    "Stevenson_Catriona_1893.txt": "bff144dc85c9d6bbc7223633f4902e90b6b74dc1d4b648be1c5b96e83cb05e77",
    "Stevenson_Treasure_1883.txt": "05fa10cc95ecae598967b6f7832220806ff12939569bdac265e6475fef107c61",
    "Thackeray_Esmond_1852.txt": "1b9d510c870cd9cf346bf3f9bf06564b46eb8b47d203a18543e6e0edecf3efe1",
    "Trollope_Warden_1855.txt": "cb511a24ef4d9929844c24a5c4731d606c9c47b5c0ddeee6b3fea78486bb97fa",
    "Wcollins_Woman_1860.txt": "8c79e7303ec5a9a4c016d23483c41648218f10aa439dea8783b87fa610d16f44",
}
# The last four by name: none of the three authors in `test` and at the end of `valid` is trained on.
HELD_OUT = {
    "Stevenson_Treasure_1883.txt": "valid",
    "Thackeray_Esmond_1852.txt": "valid",
    "Trollope_Warden_1855.txt": "test",
    "Wcollins_Woman_1860.txt": "test",
}


def english_novels(name: str, description: str) -> Corpus:
    """One document per book."""
    source = find_novels()
    if source is None:
        raise UserError(
            f"corpus {name}: no {ARCHIVES[0]}, nor a folder {FOLDER} with its 22 books, in "
            f"{search_folders_in_words()}; put it into one of these folders (LOCKSTEP_DATA names more)"
        )
    books = cache(lambda: read_checked(source, FOLDER, BOOKS))

    def read(split: str) -> Iterator[bytes]:
        return (books()[name] for name in BOOKS if HELD_OUT.get(name, "train") == split)

    files = tuple(source / name for name in BOOKS) if source.is_dir() else (source,)
    return Corpus(name, description, read, files)


def find_novels() -> Path | None:
    """The folder or archive that holds the books, where there is one."""
    return find_archived(FOLDER, BOOKS, ARCHIVES)
