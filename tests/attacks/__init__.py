"""Attacks: each row of a table is a hostile input, and what must happen.

Each test fails if a marker file appears, if it takes 10 s of the processor, or 1 GiB more memory.

- `test_exported_programs.py`: `.pt2` files.
- `test_files.py`: files of all other formats.
- `test_journals.py`: journals; `test_torch_journals.py`: the positions of trainings in PyTorch.
- `test_typed_text.py`: program text, lines at the prompt, expressions, arguments of the command line.
- `test_servers.py`: requests of the debug adapter, documents in the language server.

Elsewhere: a model with hostile names in `tests/hostile.py` (used by 5 files), malformed messages in
`tests/dap_server/test_malformed.py` (62 rows), access in `tests/dap_server/test_access.py`, invalid models in
`tests/terminal/test_bad_models.py`, and invalid text in `tests/textual_repr/test_fuzz.py`.
"""
