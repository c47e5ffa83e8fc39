"""The parts of a race report that refer to the program's text: call sites, names of streams and operators, and
fixes.
"""
