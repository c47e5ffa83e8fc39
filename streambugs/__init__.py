"""StreamBugs: real stream bugs of public programs, each a pair of a buggy and a fixed program. See README.md."""
