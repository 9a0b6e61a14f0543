"""Nothing in the repository holds a retired word, and each place where one stays has its reason.

Small made-up texts show that every word is found in every form.
"""

from __future__ import annotations

from tests.support.processes import CHECKOUT
from tests.support.words import LIST, Words

WORDS = Words((CHECKOUT / LIST).read_text())
FOUND = {
    "succeeded": ["term 3 was succeeded", "is_succeeded = 1", "its successors", "Succeeded by"],
    "Assignment": ["x: Assignment", "assignments = []"],
    "Order": ["from wal_sink.protocol.messages import Order", "import wal_sink.protocol.messages\nopen_orders = []"],
    "Outcome": [
        "from wal_sink.protocol.messages import Outcome",
        "x: SegmentResult\nfrom wal_sink.protocol.messages import y\noutcome = x",
    ],
    "Serving": ["class Serving: ...", "x: ServedSink\nserving = x"],
    "Surroundings": ["class Surroundings: ...", "# its surroundings"],
    "Carrier": ["class LocalCarrier: ...", "class CarrierLostError: ...", "# the carrier"],
    "Crew": ["class Crew: ...", "crew = 1"],
    "Caller": ["class ThreadCaller: ...", "x: TimedCall\ncaller = x", "class Caller: ...\nnew_caller = 1"],
    "HOLD_BACK": ["Ability.HOLD_BACK"],
    "STORE_POSITION": ["Ability.STORE_POSITION"],
    "publish": ["publish_all = 1", "# was never published", "# an unpublished file", "# publishing"],
    "witness": ["class Witness: ...", "witnesses = 1"],
    "roll": ["roll = 1", "# partition and roll", "# how many rolls"],
    "refusal number": ["# the refusal number", "refusal_number = 1", "# the number of their refusal"],
    "manieth": ["# the how manieth segment"],
    "whoever": ["# Whoever comes", "# whosoever comes"],
    "what it has by": ["# what it has by then", "# rows that it had by"],
    "besides": ["# kept besides"],
    "save": ["# all save one", '"Exactly once, save late requests"'],
    "mend": ["# mend it", "# mended", "# mending"],
    "of its own": [
        "# a folder of its own",
        "# a folder of\n# its own",
        'x = ("a folder of its "\n    f"own")',
        "# of their own",
    ],
    "by chance": ["# drawn by chance"],
    "is asked": ["# it is asked", "# they were never asked", "# a store\n# is\n# asked"],
    "away": ["# it is away"],
    "What …": [
        '"""What a call does."""',
        "x = 1  # What follows",
        "# One. What two is, is two.",
        '"""A.\n\nWhat b is."""',
    ],
    "Who …": ["# Who comes second waits."],
}


def test_nothing_holds_a_retired_word_and_every_allowed_place_needs_its_entry() -> None:
    everything = WORDS.places(CHECKOUT, ["."])
    left = WORDS.left(everything)
    assert not left, "python -m tests.support.words\n" + "\n".join(map(str, left))
    assert WORDS.unused(everything) == []
