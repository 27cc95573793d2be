"""The scripts import projects that are installed in environments of their own."""

collect_ignore = ["hugging_face.py", "molecules.py", "tabular.py"]
