"""The scripts import projects that are installed in environments of their own."""

collect_ignore = ["deep_tables.py", "hugging_face.py", "images.py", "molecules.py", "tabular.py"]
