"""Arguments of public functions: public binds names; arg_aliases, arg_errors and torch_function are what every
call passes; options (sizes, dtype, device, layout), integers, extents, typing, return_types.
"""
