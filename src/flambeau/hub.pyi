# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.hub."""


from flambeau.serialization.hub import download_url_to_file as download_url_to_file
from flambeau.serialization.hub import get_dir as get_dir
from flambeau.serialization.hub import help as help
from flambeau.serialization.hub import list as list
from flambeau.serialization.hub import load as load
from flambeau.serialization.hub import load_state_dict_from_url as load_state_dict_from_url
from flambeau.serialization.hub import set_dir as set_dir

