"""One worker script per engine, each run in a process (and where needed a venv) of its own."""
