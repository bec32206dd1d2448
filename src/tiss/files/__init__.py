"""Files that are whole or not there at all, and readers that check what they read."""

from tiss.files.atomic import (
    Lock,
    append_line,
    atomic_folder,
    existing,
    make_folder,
    recover,
    reserve,
    truncate_to,
    write_bytes,
    write_json,
    write_text,
)
from tiss.files.reading import inside, open_regular, read_bytes, read_json, read_text, read_yaml
from tiss.files.tensors import read_tensors, write_tensors
