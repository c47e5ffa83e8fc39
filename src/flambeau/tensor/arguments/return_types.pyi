# Written by tools/stubs.py. Edit the definitions, and run it again.
"""`torch.return_types`."""

from collections.abc import Iterable
from typing import Any

from flambeau.tensor.tensor import Tensor

class NamedResult(tuple[Any, ...]):
    n_fields: int
    n_sequence_fields: int
    n_unnamed_fields: int
    fields: tuple[str, ...]
    stored: type[NamedResult]
    def __new__(cls, members: Iterable[Any]) -> NamedResult: ...
    @classmethod
    def of(cls, members: Iterable[Any], out: Any) -> NamedResult: ...

class aminmax(NamedResult):
    __match_args__ = ('min', 'max')
    @property
    def min(self) -> Tensor: ...
    @property
    def max(self) -> Tensor: ...

class aminmax_out(NamedResult):
    __match_args__ = ('min', 'max')
    @property
    def min(self) -> Tensor: ...
    @property
    def max(self) -> Tensor: ...

class cummax(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class cummax_out(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class cummin(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class cummin_out(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class frexp(NamedResult):
    __match_args__ = ('mantissa', 'exponent')
    @property
    def mantissa(self) -> Tensor: ...
    @property
    def exponent(self) -> Tensor: ...

class frexp_out(NamedResult):
    __match_args__ = ('mantissa', 'exponent')
    @property
    def mantissa(self) -> Tensor: ...
    @property
    def exponent(self) -> Tensor: ...

class geqrf(NamedResult):
    __match_args__ = ('a', 'tau')
    @property
    def a(self) -> Tensor: ...
    @property
    def tau(self) -> Tensor: ...

class geqrf_out(NamedResult):
    __match_args__ = ('a', 'tau')
    @property
    def a(self) -> Tensor: ...
    @property
    def tau(self) -> Tensor: ...

class histogram(NamedResult):
    __match_args__ = ('hist', 'bin_edges')
    @property
    def hist(self) -> Tensor: ...
    @property
    def bin_edges(self) -> Tensor: ...

class histogram_out(NamedResult):
    __match_args__ = ('hist', 'bin_edges')
    @property
    def hist(self) -> Tensor: ...
    @property
    def bin_edges(self) -> Tensor: ...

class histogramdd(NamedResult):
    __match_args__ = ('hist', 'bin_edges')
    @property
    def hist(self) -> Tensor: ...
    @property
    def bin_edges(self) -> Tensor: ...

class histogramdd_out(NamedResult):
    __match_args__ = ('hist', 'bin_edges')
    @property
    def hist(self) -> Tensor: ...
    @property
    def bin_edges(self) -> Tensor: ...

class kthvalue(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class kthvalue_out(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class linalg_cholesky_ex(NamedResult):
    __match_args__ = ('L', 'info')
    @property
    def L(self) -> Tensor: ...
    @property
    def info(self) -> Tensor: ...

class linalg_cholesky_ex_out(NamedResult):
    __match_args__ = ('L', 'info')
    @property
    def L(self) -> Tensor: ...
    @property
    def info(self) -> Tensor: ...

class linalg_eig(NamedResult):
    __match_args__ = ('eigenvalues', 'eigenvectors')
    @property
    def eigenvalues(self) -> Tensor: ...
    @property
    def eigenvectors(self) -> Tensor: ...

class linalg_eig_out(NamedResult):
    __match_args__ = ('eigenvalues', 'eigenvectors')
    @property
    def eigenvalues(self) -> Tensor: ...
    @property
    def eigenvectors(self) -> Tensor: ...

class linalg_eigh(NamedResult):
    __match_args__ = ('eigenvalues', 'eigenvectors')
    @property
    def eigenvalues(self) -> Tensor: ...
    @property
    def eigenvectors(self) -> Tensor: ...

class linalg_eigh_out(NamedResult):
    __match_args__ = ('eigenvalues', 'eigenvectors')
    @property
    def eigenvalues(self) -> Tensor: ...
    @property
    def eigenvectors(self) -> Tensor: ...

class linalg_inv_ex(NamedResult):
    __match_args__ = ('inverse', 'info')
    @property
    def inverse(self) -> Tensor: ...
    @property
    def info(self) -> Tensor: ...

class linalg_inv_ex_out(NamedResult):
    __match_args__ = ('inverse', 'info')
    @property
    def inverse(self) -> Tensor: ...
    @property
    def info(self) -> Tensor: ...

class linalg_ldl_factor(NamedResult):
    __match_args__ = ('LD', 'pivots')
    @property
    def LD(self) -> Tensor: ...
    @property
    def pivots(self) -> Tensor: ...

class linalg_ldl_factor_ex(NamedResult):
    __match_args__ = ('LD', 'pivots', 'info')
    @property
    def LD(self) -> Tensor: ...
    @property
    def pivots(self) -> Tensor: ...
    @property
    def info(self) -> Tensor: ...

class linalg_ldl_factor_ex_out(NamedResult):
    __match_args__ = ('LD', 'pivots', 'info')
    @property
    def LD(self) -> Tensor: ...
    @property
    def pivots(self) -> Tensor: ...
    @property
    def info(self) -> Tensor: ...

class linalg_ldl_factor_out(NamedResult):
    __match_args__ = ('LD', 'pivots')
    @property
    def LD(self) -> Tensor: ...
    @property
    def pivots(self) -> Tensor: ...

class linalg_lstsq(NamedResult):
    __match_args__ = ('solution', 'residuals', 'rank', 'singular_values')
    @property
    def solution(self) -> Tensor: ...
    @property
    def residuals(self) -> Tensor: ...
    @property
    def rank(self) -> Tensor: ...
    @property
    def singular_values(self) -> Tensor: ...

class linalg_lstsq_out(NamedResult):
    __match_args__ = ('solution', 'residuals', 'rank', 'singular_values')
    @property
    def solution(self) -> Tensor: ...
    @property
    def residuals(self) -> Tensor: ...
    @property
    def rank(self) -> Tensor: ...
    @property
    def singular_values(self) -> Tensor: ...

class linalg_lu(NamedResult):
    __match_args__ = ('P', 'L', 'U')
    @property
    def P(self) -> Tensor: ...
    @property
    def L(self) -> Tensor: ...
    @property
    def U(self) -> Tensor: ...

class linalg_lu_factor(NamedResult):
    __match_args__ = ('LU', 'pivots')
    @property
    def LU(self) -> Tensor: ...
    @property
    def pivots(self) -> Tensor: ...

class linalg_lu_factor_ex(NamedResult):
    __match_args__ = ('LU', 'pivots', 'info')
    @property
    def LU(self) -> Tensor: ...
    @property
    def pivots(self) -> Tensor: ...
    @property
    def info(self) -> Tensor: ...

class linalg_lu_factor_ex_out(NamedResult):
    __match_args__ = ('LU', 'pivots', 'info')
    @property
    def LU(self) -> Tensor: ...
    @property
    def pivots(self) -> Tensor: ...
    @property
    def info(self) -> Tensor: ...

class linalg_lu_factor_out(NamedResult):
    __match_args__ = ('LU', 'pivots')
    @property
    def LU(self) -> Tensor: ...
    @property
    def pivots(self) -> Tensor: ...

class linalg_lu_out(NamedResult):
    __match_args__ = ('P', 'L', 'U')
    @property
    def P(self) -> Tensor: ...
    @property
    def L(self) -> Tensor: ...
    @property
    def U(self) -> Tensor: ...

class linalg_qr(NamedResult):
    __match_args__ = ('Q', 'R')
    @property
    def Q(self) -> Tensor: ...
    @property
    def R(self) -> Tensor: ...

class linalg_qr_out(NamedResult):
    __match_args__ = ('Q', 'R')
    @property
    def Q(self) -> Tensor: ...
    @property
    def R(self) -> Tensor: ...

class linalg_slogdet(NamedResult):
    __match_args__ = ('sign', 'logabsdet')
    @property
    def sign(self) -> Tensor: ...
    @property
    def logabsdet(self) -> Tensor: ...

class linalg_slogdet_out(NamedResult):
    __match_args__ = ('sign', 'logabsdet')
    @property
    def sign(self) -> Tensor: ...
    @property
    def logabsdet(self) -> Tensor: ...

class linalg_solve_ex(NamedResult):
    __match_args__ = ('result', 'info')
    @property
    def result(self) -> Tensor: ...
    @property
    def info(self) -> Tensor: ...

class linalg_solve_ex_out(NamedResult):
    __match_args__ = ('result', 'info')
    @property
    def result(self) -> Tensor: ...
    @property
    def info(self) -> Tensor: ...

class linalg_svd(NamedResult):
    __match_args__ = ('U', 'S', 'Vh')
    @property
    def U(self) -> Tensor: ...
    @property
    def S(self) -> Tensor: ...
    @property
    def Vh(self) -> Tensor: ...

class linalg_svd_out(NamedResult):
    __match_args__ = ('U', 'S', 'Vh')
    @property
    def U(self) -> Tensor: ...
    @property
    def S(self) -> Tensor: ...
    @property
    def Vh(self) -> Tensor: ...

class lu_unpack(NamedResult):
    __match_args__ = ('P', 'L', 'U')
    @property
    def P(self) -> Tensor: ...
    @property
    def L(self) -> Tensor: ...
    @property
    def U(self) -> Tensor: ...

class lu_unpack_out(NamedResult):
    __match_args__ = ('P', 'L', 'U')
    @property
    def P(self) -> Tensor: ...
    @property
    def L(self) -> Tensor: ...
    @property
    def U(self) -> Tensor: ...

class max(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class max_out(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class median(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class median_out(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class min(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class min_out(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class mode(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class mode_out(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class nanmedian(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class nanmedian_out(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class qr(NamedResult):
    __match_args__ = ('Q', 'R')
    @property
    def Q(self) -> Tensor: ...
    @property
    def R(self) -> Tensor: ...

class qr_out(NamedResult):
    __match_args__ = ('Q', 'R')
    @property
    def Q(self) -> Tensor: ...
    @property
    def R(self) -> Tensor: ...

class slogdet(NamedResult):
    __match_args__ = ('sign', 'logabsdet')
    @property
    def sign(self) -> Tensor: ...
    @property
    def logabsdet(self) -> Tensor: ...

class slogdet_out(NamedResult):
    __match_args__ = ('sign', 'logabsdet')
    @property
    def sign(self) -> Tensor: ...
    @property
    def logabsdet(self) -> Tensor: ...

class sort(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class sort_out(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class svd(NamedResult):
    __match_args__ = ('U', 'S', 'V')
    @property
    def U(self) -> Tensor: ...
    @property
    def S(self) -> Tensor: ...
    @property
    def V(self) -> Tensor: ...

class svd_out(NamedResult):
    __match_args__ = ('U', 'S', 'V')
    @property
    def U(self) -> Tensor: ...
    @property
    def S(self) -> Tensor: ...
    @property
    def V(self) -> Tensor: ...

class topk(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class topk_out(NamedResult):
    __match_args__ = ('values', 'indices')
    @property
    def values(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...

class triangular_solve(NamedResult):
    __match_args__ = ('solution', 'cloned_coefficient')
    @property
    def solution(self) -> Tensor: ...
    @property
    def cloned_coefficient(self) -> Tensor: ...

class triangular_solve_out(NamedResult):
    __match_args__ = ('solution', 'cloned_coefficient')
    @property
    def solution(self) -> Tensor: ...
    @property
    def cloned_coefficient(self) -> Tensor: ...
