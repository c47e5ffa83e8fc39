"""Public collective functions: collectives, messages (between two ranks), objects (pickled), coalescing, and
group_calls, the methods of ProcessGroup. collective_checks has the checks of arguments, reduce_op and
collective_options the rest.
"""
