# ruff: noqa: E501 - a row of the table is one line
"""Families of messages: real members of public threads in short form, and lines that look like one and are none.

Holds `toprope.codes.catalogue`.
"""

import re
import time
from collections.abc import Sequence

import pytest

from doctor_kinds import KINDS
from toprope.codes import in_log
from toprope.codes.catalogue import FOLDER, load, rules
from toprope.codes.packages import of_frames

ERROR = "(EngineCore_DP0 pid=7) ERROR 09-18 10:34:29 [core.py:718] "

# family, a word of its answer, members
MEMBERS: list[tuple[str, str, Sequence[str]]] = [
    ("pip-conflict", "torch==2.10.0", [
        "vllm 0.18.0 requires torch==2.10.0, but you have torch 2.9.0 which is incompatible.",
        "torch-npu 2.7.1.dev20250724 requires torch==2.10.0, but you have torch 2.8.0+cpu which is incompatible.",
        'x 5.0.0.93 requires torch==2.10.0; python_version >= "3.9", but you have torch 1.26.4 which is incompatible.',
    ]),
    ("pip-unsolvable", "vllm first", [
        "    vllm 0.13.0 depends on torch==2.9.0",
        '    vllm 0.19.1 depends on torch==2.10.0; platform_machine == "aarch64"',
        "  x Because vllm-ascend==0.13.0 depends on torch==2.8.0 and vllm==0.13.0 depends on torch==2.9.0, we can conclude",
    ]),
    ("pip-no-version", "--extra-index-url", [
        "ERROR: No matching distribution found for torchvision==0.22.1+cpu",
        "ERROR: No matching distribution found for cann-toolkit>=8.0",
        "ERROR: No matching distribution found for mindspeed",
    ]),
    ("package-record", "pip has no record", [
        "importlib.metadata.PackageNotFoundError: No package metadata was found for megatron-core",
        "importlib.metadata.PackageNotFoundError: megatron-core",
        "pkg_resources.DistributionNotFound: The 'decorator' distribution was not found",
    ]),
    ("build-header", "belongs to", [
        "/x/csrc/pos_encoding_kernels.cpp:22:10: fatal error: 'inner_interface/inner_kernel_operator_intf.h' file not found",
        "/x/csrc/torch_binding.cpp:20:10: fatal error: torch_npu/csrc/core/npu/NPUStream.h: No such file or directory",
        "kernel_macros.h:24:10: fatal error: 'cstdint' file not found",
    ]),
    ("build-tool", "gcc", [
        "  No CMAKE_CXX_COMPILER could be found.",
        '  Could not find a package configuration file provided by "pybind11" with any',
        "/bin/sh: line 1: ccec: command not found",
    ]),
    ("build-file", "another CANN", [
        "  include could not find requested file:",
        "  /x/CMakeLists.txt:12: include could not find load file:",
        "CMake Error: could not find requested file: cann.cmake",
    ]),
    ("atb-setup", "NNAL", [
        "Exception raised from OperationSetup at build/third_party/op-plugin/op_plugin_atb.dir/compiler_depend.ts:131",
        "frame #2: atb::OperationSetup(atb::VariantPack, atb::Operation*, atb::Context*) + 0x8c (0xffff102146bc in /x.so)",
        "  at build/op_plugin/CMakeFiles/op_plugin_atb.dir/compiler_depend.ts:131 (most recent call first):",
    ]),
    ("build-code", "release of torch", [
        "/x/dup.h:31:9: error: no matching function for call to 'CastIntrinsicsImpl'",
        "attention.cpp:12:5: error: 'NPUStream' was not declared in this scope",
        "main.o: undefined reference to `torch_npu::init_npu(std::string const&)'",
    ]),
    ("build-failed", "MAX_JOBS", [
        "subprocess.CalledProcessError: Command '['cmake', '--build', '.', '-j=192', '--target=vllm_ascend_C']' returned non-zero exit status 2.",
        "gmake[3]: *** [CMakeFiles/vllm_ascend_C.dir/build.make:90: x.cpp.o] Error 1",
        "      __main__.TooFewObj: There is no obj file in this directory: /tmp/x",
    ]),
    ("kernel-buffer", "smaller blocks", [
        "error: ub overflow, requires 3072000 bits while 1572864 bits available!",
        'loc("/tmp/module.hivm.mlir":2:3): error: ub overflow, requires 1966848 bits while 1572864 bits avaliable!',
        "error: cbuf overflow, requires 8388608 bits while 4194304 bits available!",
    ]),
    ("kernel-compiler", "triton-ascend", [
        "loc(\"/tmp/x.mlir\":4:5): error: 'memref.expand_shape' op invalid alignment",
        "/tmp/tmpx/kernel.ttadapter.mlir:13:10: error: failed to legalize operation 'arith.trunci'",
        'loc("/x/fused.py":31:20): error: unsupported tensor type',
    ]),
    ("kernel-compile-failed", "--enforce-eager", [
        "triton.compiler.errors.MLIRCompilationError: ",
        "[ConvertLinalgRToBinary] encounters error:",
        "torch._dynamo.exc.TorchRuntimeError: Failed running call_function",
    ]),
    ("operator-compile-failed", "kernel_meta", [
        "        Failed to compile Op [/model/layers.30/Slice_5]. (optype: [StridedSliceD])",
        "[SubGraphOpt][Pre-Comp]Failed to pre-compile node /model/layers.30/Slice_5",
        "AutoFuse codegen failed for graph 3",
    ]),
    ("folder-shadows", "another folder", [
        "ImportError: cannot import name 'LLM' from 'vllm' (unknown location)",
        "ImportError: cannot import name 'PoolingParams' from 'vllm' (unknown location)",
        "AttributeError: module 'vllm_ascend' has no attribute 'register'",
    ]),
    ("python-none", "optional package", [
        "AttributeError: 'NoneType' object has no attribute 'cadam32bit_grad_fp32'",
        "TypeError: 'NoneType' object is not callable",
        "RuntimeError: NPUModelRunner init failed, error is 'NoneType' object is not subscriptable",
    ]),
    ("custom-operator", "COMPILE_CUSTOM_KERNELS=1", [
        "AttributeError: '_OpNamespace' '_C_ascend' object has no attribute 'weak_ref_tensor'",
        "AttributeError: '_OpNamespace' '_C_ascend' object has no attribute 'npu_apply_top_k_top_p'",
        "AttributeError: '_OpNamespace' 'npu' object has no attribute 'npu_sparse_flash'",
    ]),
    ("python-object", "different releases", [
        "AttributeError: 'AscendQuantConfig' object has no attribute 'packed_modules_mapping'",
        "AttributeError: 'NPUModelRunner' object has no attribute 'mm_budget'",
        "AttributeError: 'AscendRowParallelLinear' object has no attribute 'aclnn_input_scale'",
    ]),
    ("python-attribute", "different releases", [
        "AttributeError: module 'torch_npu.npu' has no attribute 'profile'",
        "AttributeError: module 'transformers' has no attribute 'AutoModelForVision2Seq'",
        "AttributeError: partially initialized module 'vllm.config' has no attribute 'VllmConfig'",
    ]),
    ("plugin-or-model-import", "traceback", [
        "Failed to load plugin ascend",
        "Value error, Model architectures ['Qwen3NextForCausalLM'] failed to be inspected. Please check the logs",
        "Error in inspecting model architecture 'Glm4vForConditionalGeneration'",
    ]),
    ("python-name", "different releases", [
        "ImportError: cannot import name 'AscendFusedMoE' from 'vllm_ascend.ops.fused_moe' (/x/fused_moe.py)",
        "ImportError: cannot import name 'HcclOpModeSetFeature' from 'mindspeed.features_manager' (/x/__init__.py)",
        "ImportError: cannot import name '_cuda_beginAllocateCurrentThreadToPool' from 'torch.cuda.memory'",
    ]),
    ("python-submodule", "different releases", [
        "ModuleNotFoundError: No module named 'vllm.v1.attention.backends.mla.prefill'",
        "ModuleNotFoundError: No module named 'vllm.benchmarks.serve'",
        "ModuleNotFoundError: No module named 'triton.knobs'",
    ]),
    ("python-module", "not installed in the Python", [
        "ModuleNotFoundError: No module named 'dlinfer'",
        "ModuleNotFoundError: No module named 'vllm_ascend'",
        "ModuleNotFoundError: No module named 'sgl_kernel_npu'",
    ]),
    ("worker-silent", "first error of a worker", [
        "TimeoutError: RPC call to sample_tokens timed out.",
        "TimeoutError: RPC call to execute_model timed out.",
        "Timed out waiting for engine core processes to start",
    ]),
    ("python-argument", "different releases", [
        "TypeError: Qwen2ForCausalLM.forward() got an unexpected keyword argument 'kv_caches'",
        "TypeError: Qwen2ForCausalLM.forward() missing 2 required positional arguments: 'kv_caches' and 'attn_metadata'",
        "TypeError: AscendMetadataBuilder.build() takes 3 positional arguments but 5 were given",
    ]),
    ("option-unknown", "--help", [
        "vllm: error: unrecognized arguments: --omni",
        "api_server.py: error: argument --quantization/-q: invalid choice: 'ascend' (choose from 'awq', 'gptq')",
        "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=1, input_type=int]",
    ]),
    ("environment-variable", "set_env.sh", [
        "KeyError: 'ASCEND_HOME_PATH'",
        "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        "build.sh: ASCEND_HOME_PATH is not set",
    ]),
    ("weight-name", "--quantization ascend", [
        "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
        "KeyError: 'layers.0.mlp.gate_up_proj.deq_scale'",
        "RuntimeError: Error(s) in loading state_dict: size mismatch for model.embed_tokens.weight: copying a param",
    ]),
    ("architecture-unknown", "older than the model", [
        "ValueError: Model architectures ['Glm4vForConditionalGeneration'] are not supported for now.",
        "The checkpoint you are trying to load has model type `qwen3_vl` but Transformers does not recognize this architecture.",
        "KeyError: 'qwen3_moe'",
    ]),
    ("quantisation-unsupported", "BF16", [
        "NotImplementedError: There is no available ascend quantizer.",
        "ValueError: fp8 quantization is currently not supported in npu.",
        "ValueError: Quantization method specified in the model config (fp8) does not match the argument (ascend).",
    ]),
    ("length-over-cache", "--max-model-len 3664", [
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV cache (3664).",
        "the model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache (3664). Try",
        ERROR + "The model's max seq len (163840) is larger than the maximum number of tokens that can be stored in KV cache (3664)",
    ]),
    ("length-over-model", "config.json", [
        "ValueError: User-specified max_model_len (4096) is greater than the derived max_model_len (seq_length=2048 or None)",
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
        "max_model_len (65536) is greater than the derived max_model_len (max_position_embeddings=32768)",
    ]),
    ("no-ascend-allocator", "COMPILE_CUSTOM_KERNELS=1", [
        "AssertionError: camem allocator is not available",
        "[rank0]: AssertionError: camem allocator is not available",
        ERROR + "AssertionError: camem allocator is not available",
    ]),
    ("gloo-connect", "GLOO_SOCKET_IFNAME", [
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [10.0.0.2]:5: Connection refused",
        "RuntimeError: Unable to find address for: bond9",
    ]),
    ("rendezvous", "rank 0 first", [
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.0.0.1, 29500).",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        "The client socket has failed to connect to [10.0.0.1]:29500 (errno: 111 - Connection refused).",
    ]),
    ("cache-transfer", "use_ascend_direct", [
        "E20260106 06:43:02.966156  5793 ascend_direct_transport.cpp:820] Failed to connect to target: 172.17.0.16:25482, status: 103900",
        "RuntimeError: Mooncake transfer failed, ret: -1",
        "ERROR 03-31 02:49:30 [mooncake_connector.py:441] Failed to transfer KV cache for request chatcmpl-1",
    ]),
    ("ray-no-npu", "ray status", [
        "ValueError: Current node has no NPU available. current_node_resource={'CPU': 192.0, 'GPU': 8.0}",
        "ValueError: placement group bundle index 8 is invalid. Valid placement group indexes: 0-2",
        "No available node types can fulfill resource request {'NPU': 1.0, 'CPU': 1.0}",
    ]),
    ("model-files", "misspelt", [
        "OSError: /models/Qwen3 does not appear to have a file named config.json.",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/weights/model.safetensors.index.json'",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name': '/models/x'.",
    ]),
    ("remote-code", "--trust-remote-code", [
        "ValueError: The repository /data/x contains custom code which must be executed to load the model. Pass `trust_remote_code=True`",
        "Loading /x requires you to execute the configuration file in that repo. Set the option `trust_remote_code=True`",
        "contains custom code which must be excuted. Please pass the argument 'trust_remote_code=True'",
    ]),
    ("path-permission", "kernel_meta", [
        "Path [/usr/bin] for [ge.debugDir] is invalid.Result: access real path failed. Reason: Permission denied",
        "PermissionError: [Errno 13] Permission denied: '/workspace/kernel_meta'",
        "OSError: [Errno 30] Read-only file system: '/home/u/.cache'",
    ]),
    ("host-memory", "host's memory", [
        "OSError: [Errno 12] Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 117440512 bytes.",
    ]),
    ("disk-full", "df -h", [
        "OSError: [Errno 28] No space left on device: '/home/u/.triton/x'",
        "No space left on device",
        "OSError: [Errno 122] Disk quota exceeded",
    ]),
    ("container-start", "docker", [
        'OCI runtime create failed: runc create failed: error during container init: error mounting "/var/lib/x" to rootfs',
        "No deployer supports, please provide container runtime",
        "Error response from daemon: OCI runtime create failed: unable to start container process",
    ]),
    ("server-listen", "0.0.0.0", [
        "[MIE04E02041C] [endpoint] Failed to listen 172.17.0.3:40032, please check if business ip and port are legal.",
        "OSError: [Errno 99] Cannot assign requested address",
        "ERROR: [Errno 99] error while attempting to bind on address ('10.1.1.1', 8000): cannot assign requested address",
    ]),
    ("native-crash", "different releases", [
        "Segmentation fault (core dumped)",
        "aclnn_ops.cpp:3007: GGML_ASSERT(n_dims == src0->ne[0]) failed",
        "torch.distributed.elastic failed (exitcode: -11) local_rank: 0",
    ]),
    ("parallel-size", "--tensor-parallel-size", [
        "ValueError: Total number of attention heads (52) must be divisible by tensor parallel size (8).",
        "AssertionError: 12 is not divisible by 8",
        "AssertionError: n_physical_experts=256 must be divisible by ep_size=3. Adjust num_redundant_experts.",
    ]),
    ("host-limits", "ulimit", [
        "RuntimeError: can't start new thread",
        "OSError: [Errno 24] Too many open files",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 34 of 64: Resource temporarily unavailable",
    ]),
    ("tensor-shape", "speculative decoding", [
        "RuntimeError: shape '[6, -1]' is invalid for input of size 512",
        "RuntimeError: The size of tensor a (7968) must match the size of tensor b (0) at non-singleton dimension 0",
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
    ]),
    ("setting-refused", "config.json", [
        "  Value error, Expecting value: line 1 column 1 (char 0) [type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]",
        "  Assertion failed, max_num_batched_tokens must be larger [type=assertion_error]",
        "  Input should be 'auto', 'half' or 'float16' [type=literal_error, input_value='int8']",
    ]),
    ("npu-unsupported", "leave the option out", [
        "ValueError: Speculative decoding is not supported on this platform",
        ERROR + "NotImplementedError: sequence parallelism is not implemented for NPU",
        "RuntimeError: npu_moe only supports k equal to 8",
    ]),
    ("python-exception", "stopped with", [
        "ValueError: not enough values to unpack (expected 13, got 9)",
        ERROR + "IndexError: list index out of range",
        "[rank0]: AssertionError",
    ]),
]  # fmt: skip

NEAR_MISSES = [
    "vllm 0.18.0 requires torch==2.10.0",
    "the result depends on torch settings",
    "note: fatal errors are printed",
    "gcc found; cmake found",
    "buffer overflow protection is on",
    "WARNING: this model has no attribute file",
    "Failed to import from custom_ar with ModuleNotFoundError(\"No module named 'sgl_kernel'\")",
    "all arguments of the server are printed",
    "ASCEND_HOME_PATH is set to /usr/local/Ascend",
    "loading model.layers.0.self_attn.q_proj.weight",
    "The maximum context length of this model is large",
    "Gloo is the backend of the CPU group",
    "placement group created with 8 NPUs",
    "trust_remote_code=True, quantization=ascend",
    "0 errors, 0 exceptions",
    "INFO 06-03 quantization method ascend chosen",
    "AssertionErrors are caught here",
    "[rank0]: Warning: FileNotFoundError: [Errno 2] No such file or directory: '/home/u/.config/x' ignored",
    "WARNING 10-28 03:24:22 [x.py:20] ImportError: cannot import name 'x' from 'vllm.y', using the default",
]


def codes(*lines: str) -> list[str]:
    return [each.what.code for each in in_log(line.encode() for line in lines)]


@pytest.mark.parametrize(("family", "word", "members"), MEMBERS, ids=[each[0] for each in MEMBERS])
def test_members_of_a_family_have_its_answer(family: str, word: str, members: Sequence[str]) -> None:
    assert len(members) == 3
    for line in members:
        for prefix in ("", ERROR, "[rank3]: ") if not line.startswith(" ") else ("",):
            log = ["INFO start", prefix + line, "[ERROR] (PID:7) ERR99999 UNKNOWN exception"]
            first = in_log(each.encode() for each in log)[0]
            assert first.what.code == family, prefix + line
        said = "\n".join((first.what.means, *first.what.causes, *first.what.try_))
        assert not re.search(r"\{\w+\}", said)
        assert first.what.sources
    assert word in said


def test_every_family_has_members() -> None:
    families = {rule.what.code for rule in rules() if rule.family}
    assert families <= {family for family, _, _ in (*MEMBERS, *KINDS)}


@pytest.mark.parametrize("line", NEAR_MISSES)
def test_lines_that_look_like_a_family_are_none(line: str) -> None:
    assert codes(line) == []


def test_an_entry_is_more_than_a_family() -> None:
    assert codes("AttributeError: module 'torch_npu' has no attribute 'npu_geglu'") == ["torch-npu-attribute"]
    assert codes("RuntimeError: call aclnnAdd failed, detail:EZ1001: not supported") == ["EZ1001"]


def test_consequences_never_come_before_the_root() -> None:
    log = [
        "(Worker_TP3 pid=9) ERROR 12-30 [multiproc_executor.py:824] WorkerProc hit an exception.",
        "(Worker_TP3 pid=9) ERROR 12-30 [multiproc_executor.py:824] AttributeError: 'NPUModelRunner' object has no attribute 'mm_budget'",
        "(EngineCore_DP0 pid=7) ERROR 12-30 [core.py:866] EngineCore failed to start.",
        "(EngineCore_DP0 pid=7) Exception: Call to collective_rpc method failed: 'NPUModelRunner' object has no attribute 'mm_budget'",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "[ERROR] 2025-12-30 (PID:1532, Device:-1, RankID:-1) ERR99999 UNKNOWN applicaiton exception",
    ]
    for turned in (log, log[1:2] + log, log[2:] + log[:2]):
        assert codes(*turned)[0] == "python-object"
        assert "python-exception" not in codes(*turned)


def test_the_traceback_says_who_raised_the_exception() -> None:
    log = [
        '(A pid=1)   File "/vllm-workspace/vllm-ascend/vllm_ascend/worker/model_runner_v1.py", line 31, in load',
        '(A pid=1)   File "/usr/lib64/python3.11/site-packages/torch/nn/modules/module.py", line 1736, in _call_impl',
        '(B pid=2)   File "/x/site-packages/sglang/srt/server.py", line 5, in main',
        "(A pid=1) AssertionError",
        "(B pid=2) AttributeError: 'X' object has no attribute 'y'",
    ]
    alone, *_ = in_log(line.encode() for line in log[:4])
    assert alone.what.code == "python-exception"
    assert alone.what.means == "vllm_ascend stopped with AssertionError"
    assert "vllm_ascend/worker/model_runner_v1.py, line 31, in load" in alone.what.try_[0]
    both = in_log(line.encode() for line in log)
    assert [each.what.code for each in both] == ["python-object"]
    assert "X has no y, which sglang uses" in both[0].what.means
    program, *_ = in_log(
        [
            b'  File "/home/me/train.py", line 3, in <module>',
            b"TypeError: f() takes 1 positional argument but 2 were given",
        ]
    )
    assert "train.py, line 3, in <module>" in program.what.try_[1]


def test_the_owner_of_a_name_gives_the_cure() -> None:
    cures = {
        "ModuleNotFoundError: No module named 'vllm.v1.x'": "vllm first, vllm-ascend after it",
        "ImportError: cannot import name 'x' from 'mindspeed.features' (/x)": "one Megatron alone",
        "ImportError: cannot import name 'x' from 'foo.bar' (/x)": "the releases of foo and of the packages",
        "fatal error: acl/acl.h: No such file or directory": "set_env.sh",
    }
    for line, cure in cures.items():
        assert cure in "\n".join(in_log([line.encode()])[0].what.try_)


@pytest.mark.parametrize("part", ["x", "a.b-c/", "x ", "[a] ", "'a' ", "1.2 ", "no module "])
def test_no_pattern_is_slow_on_a_long_line(part: str) -> None:
    line = part * (2000 // len(part))
    for rule in rules():
        begin = time.process_time()
        rule.pattern.search(line)
        assert time.process_time() - begin < 0.5, rule.what.code  # 13 s for the worst before


def test_the_data_is_read_again_without_an_error() -> None:
    assert len(load(FOLDER).owners) > 10


def test_a_folder_with_the_package_s_own_name_is_named_once():
    found = of_frames(['  File "/x/site-packages/vllm_ascend/vllm_ascend/utils.py", line 7, in check'], [])
    assert found["place"] == "vllm_ascend/utils.py, line 7, in check"
    assert found["caller"] == "vllm_ascend"
