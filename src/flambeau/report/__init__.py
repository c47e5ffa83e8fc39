"""Reports of programs on their machines: the recorder of a process, its JSON, and the reports of child processes."""
