"""Types of TorchScript that `torch` shows and libraries name in annotations. Flambeau does not compile TorchScript."""

from __future__ import annotations

from flambeau.core.absent import absent_class

NAMES = (
    "AnyType", "AwaitType", "BoolType", "ClassType", "ComplexType", "ConcreteModuleType", "DeviceObjType", "DictType",
    "EnumType", "FloatType", "FutureType", "InferredType", "IntType", "InterfaceType", "ListType", "NoneType",
    "NumberType", "OptionalType", "PyObjectType", "RRefType", "StreamObjType", "StringType", "SymBoolType",
    "SymIntType", "TensorType", "TupleType", "UnionType",
)  # fmt: skip

for _name in NAMES:
    globals()[_name] = absent_class(
        "torch", _name, "Functions given to torch.jit.script run as Python, without additional types."
    )
