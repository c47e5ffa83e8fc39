"""torch.linalg: linear algebra. See `tensor/functions/linalg.py`, `tensor/functions/norms.py`,
`tensor/functions/linalg_products.py`.
"""

from __future__ import annotations

from flambeau.core.errors import LinAlgError, _LinAlgError
from flambeau.core.public_names import explain_absent_names as _explain_absent_names
from flambeau.core.public_names import publish as _publish
from flambeau.tensor.arguments.arg_aliases import accepting as _accepting
from flambeau.tensor.functions.linalg import (
    cholesky_ex,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    householder_product,
    inv,
    inv_ex,
    ldl_factor,
    ldl_factor_ex,
    ldl_solve,
    lstsq,
    lu,
    lu_factor,
    lu_factor_ex,
    solve,
    solve_ex,
    solve_triangular,
    svdvals,
)
from flambeau.tensor.functions.linalg import (
    linalg_cholesky as cholesky,
)
from flambeau.tensor.functions.linalg import (
    linalg_det as det,
)
from flambeau.tensor.functions.linalg import (
    linalg_lu_solve as lu_solve,
)
from flambeau.tensor.functions.linalg import (
    linalg_qr as qr,
)
from flambeau.tensor.functions.linalg import (
    linalg_slogdet as slogdet,
)
from flambeau.tensor.functions.linalg import (
    linalg_svd as svd,
)
from flambeau.tensor.functions.linalg_products import (
    linalg_cross as cross,
)
from flambeau.tensor.functions.linalg_products import (
    linalg_diagonal as diagonal,
)
from flambeau.tensor.functions.linalg_products import (
    linalg_vander as vander,
)
from flambeau.tensor.functions.linalg_products import (
    matrix_exp,
    matrix_power,
    multi_dot,
    tensorinv,
    tensorsolve,
    vecdot,
)
from flambeau.tensor.functions.matmul import matmul
from flambeau.tensor.functions.norms import (
    cond,
    matrix_norm,
    matrix_rank,
    pinv,
    vector_norm,
)
from flambeau.tensor.functions.norms import (
    linalg_norm as norm,
)

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals",
    "eigvalsh", "householder_product", "inv", "inv_ex", "ldl_factor", "ldl_factor_ex", "ldl_solve", "lstsq",
    "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_exp", "matrix_norm", "matrix_power",
    "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve", "solve_ex", "solve_triangular",
    "svd", "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip
globals().update({_name: _accepting(globals()[_name], f"linalg_{_name}") for _name in __all__})
_publish(globals())
_explain_absent_names(globals(), "torch.linalg")
