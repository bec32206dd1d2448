"""What `tiss data convert` prints: classes and how much there is of each, likely slips, what was left out."""

from __future__ import annotations

from pathlib import Path

from tiss.cli.tables import format_table
from tiss.data.convert import Found, Written, find_lookalikes, find_unlabelled, summarise

NAMED = 3  # pictures that are named where many are left out
REMEDIES = {
    "coco": "To keep them, list them in the file's images; one without annotations is background.",
    "cvat": "To keep them, give them masks in SegmentationClass; an all-black one is background.",
    "labelme": "To keep them, label them; one with nothing on it takes an outline named background.",
    "supervisely": "To keep them, give them files in ann; one without objects is background.",
}


def print_conversion(kind: str, found: Found, written: Written, out: Path) -> None:
    """Prints the outcome; its table of classes is there to be read, for labels are typed by hand."""
    print(
        f"{out}: {written.train} pictures to train, {written.test} to test, {len(written.classes)} classes\n"
    )
    print(_class_table(found, written), end="\n\n")
    _print_lookalikes(found, written)
    unlabelled = find_unlabelled(found)
    if unlabelled:
        named = ", ".join(map(str, unlabelled[:NAMED])) + (", …" if len(unlabelled) > NAMED else "")
        plural = "s" if len(unlabelled) > 1 else ""
        print(f"left out: {len(unlabelled)} picture{plural} without labels: {named}\n  {REMEDIES[kind]}")
    for what, count in sorted(found.left_out.items()):
        print(f"left out: {count} {what}")
    print(f"check it with: tiss data verify folder --root {out}")


def _print_lookalikes(found: Found, written: Written) -> None:
    """Names that may be one class; one that --classes left out counts too, for its pixels are background now."""
    groups = [group for group in find_lookalikes(found.classes) if set(group) & set(written.classes)]
    for group in groups:
        names = ", ".join(map(repr, group[:-1])) + f" and {group[-1]!r}"
        print(f"look: {names} differ only in upper and lower case, spaces or hyphens")
    if groups:
        print("  If they are one class, give them one name in the labels and convert again.")


def _class_table(found: Found, written: Written) -> str:
    rows = []
    for row in summarise(found, written):
        objects = [] if row.objects is None else [str(row.objects)]
        rows.append([row.name, str(row.pictures), *objects, f"{100 * row.share:.2f}"])
    objects = ["objects"] if rows and len(rows[0]) == 4 else []
    return format_table(["class", "pictures", *objects, "% of pixels"], rows)
