# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.nn.utils."""


from flambeau.nn.utils import clip_grad as clip_grad
from flambeau.nn.utils.clip_grad import clip_grad_norm as clip_grad_norm
from flambeau.nn.utils.clip_grad import clip_grad_norm_ as clip_grad_norm_
from flambeau.nn.utils.clip_grad import clip_grad_value_ as clip_grad_value_
from flambeau.nn.utils.clip_grad import clip_grads_with_norm_ as clip_grads_with_norm_
from flambeau.nn.utils.memory_format import convert_conv2d_weight_memory_format as convert_conv2d_weight_memory_format
from flambeau.nn.utils.memory_format import convert_conv3d_weight_memory_format as convert_conv3d_weight_memory_format
from flambeau.nn.utils import convert_parameters as convert_parameters
from flambeau.nn.utils.fusion import fuse_conv_bn_eval as fuse_conv_bn_eval
from flambeau.nn.utils.fusion import fuse_conv_bn_weights as fuse_conv_bn_weights
from flambeau.nn.utils.fusion import fuse_linear_bn_eval as fuse_linear_bn_eval
from flambeau.nn.utils.fusion import fuse_linear_bn_weights as fuse_linear_bn_weights
from flambeau.nn.utils import fusion as fusion
from flambeau.nn.utils.clip_grad import get_total_norm as get_total_norm
from flambeau.nn.utils import init as init
from flambeau.nn.utils import memory_format as memory_format
from flambeau.nn.utils.convert_parameters import parameters_to_vector as parameters_to_vector
from flambeau.nn.utils import parametrizations as parametrizations
from flambeau.nn.utils import parametrize as parametrize
from flambeau.nn.utils.spectral_norm import remove_spectral_norm as remove_spectral_norm
from flambeau.nn.utils.weight_norm import remove_weight_norm as remove_weight_norm
from flambeau.nn.utils import rnn as rnn
from flambeau.nn.utils.init import skip_init as skip_init
from flambeau.nn.utils.spectral_norm import spectral_norm as spectral_norm
from flambeau.nn.utils import stateless as stateless
from flambeau.nn.utils.convert_parameters import vector_to_parameters as vector_to_parameters
from flambeau.nn.utils.weight_norm import weight_norm as weight_norm

