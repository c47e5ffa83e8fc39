# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.fx.passes."""


from flambeau.fx.passes import graph_drawer as graph_drawer
from flambeau.fx.passes import infra as infra
from flambeau.fx.passes.infra import pass_base as pass_base
from flambeau.fx.passes.infra import pass_manager as pass_manager
from flambeau.fx.passes import shape_prop as shape_prop
from flambeau.fx.passes import split_module as split_module
from flambeau.fx.passes import utils as utils

