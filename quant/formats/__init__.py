"""The block formats that kukri reads: `FORMATS` by GGUF name ("Q4_K"), `BY_TYPE` by GGML type id."""

from ..block import BlockFormat
from .float import BF16, F16, F32
from .iq4 import IQ4_NL, IQ4_XS
from .mxfp4 import MXFP4
from .nvfp4 import NVFP4
from .q2_k import Q2_K
from .q3_k import Q3_K
from .q4_0 import Q4_0, Q4_1
from .q4_k import Q4_K, Q5_K
from .q5_0 import Q5_0, Q5_1
from .q6_k import Q6_K
from .q8_0 import Q8_0

FORMATS: dict[str, BlockFormat] = {
    form.name: form
    for form in (
        *(F32, F16, BF16),
        *(Q8_0, Q4_0, Q4_1, Q5_0, Q5_1),
        *(Q2_K, Q3_K, Q4_K, Q5_K, Q6_K),
        *(IQ4_NL, IQ4_XS, MXFP4, NVFP4),
    )
}
BY_TYPE: dict[int, BlockFormat] = {form.ggml_type: form for form in FORMATS.values()}

__all__ = ["BY_TYPE", "FORMATS"]
