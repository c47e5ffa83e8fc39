"""Output of the commands: console, race_entries and process_entries are parts of run_report, launch_report and
explore_report; memory_page, trace_page and timelines write files.
"""
