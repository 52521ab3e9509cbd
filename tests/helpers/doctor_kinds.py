# ruff: noqa: E501 - a text is one line
"""Kinds of messages that `toprope doctor` recognises by their form: two examples of each, from different packages.

A row is the name of the finding that comes first, words of its answer, and the texts; each text is a log of its own.

Used by tests/device/test_doctor_kinds.py. A new kind is a row here and a form in `toprope.codes.reasons`.
"""

GO = "goroutine 7 [running]:\npanic({0x203d960, 0x3961100})\n\t/usr/local/go/src/runtime/panic.go:1038 +0x215\n"
FULL = "NPU out of memory. Tried to allocate 52.00 MiB (NPU 1; 60.96 GiB total capacity; 59.36 GiB already allocated; 59.36 GiB current active; 6.25 MiB free; 60.45 GiB reserved in total by PyTorch)"

KINDS: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    # errors of Python that are printed without their class
    ("python-argument", ("different releases",), (
        "2024-12-18 10:00:01,334 xinference.core.model 120 ERROR    Leave chat, error: Qwen2VLProcessor.__call__() got an unexpected keyword argument 'video_fps'",
        "[2026-05-11 11:19:09] Error in request: wrapper.<locals>.resize() missing 1 required positional argument: 'interpolation'",
    )),
    ("python-object", ("most likely",), (
        "[2025-11-02 08:00:00] Error in batch: 'AscendAttnBackend' object has no attribute 'forward_mixed'",
        "swift: Exception in infer: 'Qwen3ForCausalLM' object has no attribute 'moe_layers'",
    )),
    ("python-name", ("most likely",), (
        "启动失败: cannot import name 'is_npu' from 'sglang.srt.utils' (/x/sglang/srt/utils/__init__.py)",
        "2025-08-22 13:25:00,946 - lmdeploy - ERROR - utils.py:411 - ImportError: cannot import name '_chunk_align' from 'lmdeploy.pytorch.nn.linear' (/x.py)",
    )),
    ("python-operands", ("NoneType",), (
        "TypeError: '>=' not supported between instances of 'NoneType' and 'tuple'",
        "ERROR 11-02 [core.py:700] TypeError: unsupported operand type(s) for //: 'NoneType' and 'int'",
    )),
    ("python-module", ("not installed",), (
        "2024-11-07 12:55:24,870 - lmdeploy - ERROR - __init__.py:17 - ModuleNotFoundError: No module named 'dlinfer'",
        "Failed to load the model runner: No module named 'mindiebenchmark'",
    )),
    # Go and Rust
    ("go-frame", ("newest release of", "crashed in"), (
        'E1008 23:33:56.306763 2220922 runtime.go:78] Observed a panic: "invalid memory address" (runtime error)\n' + GO + "k8s.io/apimachinery/pkg/util/runtime.HandleCrash({0x0})\n\t/go/pkg/mod/k8s.io/runtime.go:48 +0x75\ngithub.com/koordinator-sh/koordinator/pkg/koordlet.(*informer).updateDevice.func1(0x0)\n\t/go/src/x.go:1 +0x34",
        "2025/05/23 07:05:21 http2: panic serving 127.0.0.1:57046: runtime error: index out of range [8] with length 7\n" + GO + "net/http.(*http2serverConn).runHandler.func1()\n\t/usr/local/go/src/net/http/h2_bundle.go:6185 +0x145\ngithub.com/Project-HAMi/HAMi/pkg/device/metax.parseMetaxAnnos({0xc00014f1a0?}, 0x8)",
        "panic: Unable to load resource managers: error getting device handle\n\ngoroutine 1 [running]:\nmain.(*strategy).GetPlugins(0xc00011c278)\n        /build/cmd/some-device-plugin/mig.go:57 +0x1a5",
    )),
    ("go-panic", ("newest release",), (
        "panic: send on closed channel",
        "fatal error: concurrent map iteration and map write",
    )),
    ("go-fatal", ("its own reason",), (
        "F0709 20:05:31.842816       1 server.go:80] unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST must be defined",
        'time="2025-03-01T10:00:00Z" level=fatal msg="failed to init npu manager: libdcmi is not found"',
    )),
    ("go-error", ("mounted into its pod",), (
        "[ERROR]    2025/07/09 20:05:42.195394 1       device/ascendcommon.go:657    get device ip failed, hccn_tool command return wrong result",
        "E0312 06:10:11.022211       1 register.go:69] register node annotation: patch is refused",
    )),
    ("rust-panic", ("Rust",), (
        "thread '<unnamed>' panicked at src/models/unigram/trainer.rs:203:53:",
        "pyo3_runtime.PanicException: called `Option::unwrap()` on a `None` value",
    )),
    # packages
    ("cuda-package-wanted", ("do not install it",), (
        "importlib.metadata.PackageNotFoundError: No package metadata was found for flash_attn",
        "importlib.metadata.PackageNotFoundError: bitsandbytes",
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed.",
        "ImportError: This modeling file requires the following packages that were not found in your environment: flash_attn. Run `pip install flash_attn`",
        "ImportError: Loading an AWQ quantized model requires auto-awq library (`pip install autoawq`)",
        "ModuleNotFoundError: No module named 'xformers'",
    )),
    ("package-record", ("pip install",), (
        "importlib.metadata.PackageNotFoundError: No package metadata was found for qwen-vl-utils",
        "importlib.metadata.PackageNotFoundError: mindspeed-llm",
    )),
    ("pip-python", ("conda create",), (
        "ERROR: Package 'vllm-ascend' requires a different Python: 3.12.3 not in '<3.12,>=3.9'",
        "ERROR: Ignored the following versions that require a different python version: 0.9.1 Requires-Python >=3.9,<3.12",
    )),
    ("pip-managed", ("venv",), (
        "error: externally-managed-environment",
        "ERROR: Cannot uninstall 'blinker'. It is a distutils installed project and thus we cannot accurately determine which files belong to it",
    )),
    ("network-download", ("mirror",), (
        "Could not fetch URL https://mirrors.example.org/simple/torch/: There was a problem confirming the ssl certificate",
        'Error response from daemon: Get "https://quay.io/v2/": net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)',
    )),
    ("host-name", ("/etc/hosts",), (
        "[W socket.cpp:601] The IPv6 network addresses of (node1, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",
        "fatal: unable to look up: Could not resolve host: github.example",
    )),
    ("version-required", ("pip install",), (
        "ImportError: transformers>=4.41.0,<=4.46.1 is required for a normal functioning of this module, but found transformers==4.50.0.",
        "pkg_resources.VersionConflict: (protobuf 5.1.0 (/x/site-packages), Requirement.parse('protobuf<4'))",
    )),
    # building
    ("build-toolchain", ("wheel", "missing or too old"), (
        "      error: can't find Rust compiler\n  ERROR: Failed building wheel for tokenizers",
        "    CMake 3.26 or higher is required.  You are running version 3.16.3\n  ERROR: Failed building wheel for sentencepiece",
        "  ../meson.build:80:0: ERROR: Unknown compiler(s): [['gfortran'], ['flang']]\n  ERROR: Failed building wheel for scipy",
        "error: command 'gcc' failed: No such file or directory\nERROR: Failed building wheel for psutil",
        "RuntimeError: Ninja is required to load C++ extensions",
    )),
    ("build-processor", ("uname -m",), (
        "/x/ggml-cann/aclnn_ops.cpp:1786:49: error: 'float16_t' was not declared in this scope; did you mean 'float_t'?",
        "/x/csrc/cpu/attention.cpp:4:10: fatal error: immintrin.h: No such file or directory",
        "g++: error: unrecognized command-line option '-mavx2'; did you mean '-mabi'?",
    )),
    ("build-killed", ("MAX_JOBS",), (
        "c++: fatal error: Killed signal terminated program cc1plus\ngmake[2]: *** [vendor/x.cpp.o] Error 1",
        "g++: internal compiler error: Killed (program cc1plus)",
    )),
    ("build-library", ("set_env.sh",), (
        "/usr/bin/ld: cannot find -lascendcl: No such file or directory",
        "ld.lld: error: unable to find library -lc10",
    )),
    ("git-sources", ("safe.directory", "SETUPTOOLS_SCM_PRETEND_VERSION"), (
        "fatal: detected dubious ownership in repository at '/vllm-workspace/vllm-ascend'",
        "LookupError: setuptools-scm was unable to detect version for /root/vllm.",
    )),
    ("driver-build", ("kernel-devel",), (
        "Error! Your kernel headers for kernel 5.10.0-60.18.0.50.aarch64 cannot be found at /lib/modules/5.10.0-60.18.0.50.aarch64/build",
        "[Driver] [2024-05-06 10:10:10] [ERROR]: ERR_NO:0x0091;ERR_DES:HwHiAiUser not exists! Please add HwHiAiUser first.",
    )),
    # CANN that is older than torch_npu, kernels of a dtype
    ("cann-function-graph", ("older", "--enforce-eager"), (
        "ERROR 06-17 [multiproc_executor.py:523] RuntimeError: Failed to find function aclmdlRICaptureBegin",
        "ImportError: /x/lib/libtorch_npu.so: undefined symbol: aclmdlRIExecuteAsync",
    )),
    ("cann-function", ("older",), (
        "RuntimeError: Failed to find function aclrtPeekAtLastError\n[ERROR] (PID:12, Device:0, RankID:-1) ERR00008 PTA resource not found",
        "RuntimeError: Failed to find function HcclCommInitRootInfoConfig",
    )),
    ("symbols", ("older",), (
        "ImportError: /x/torch_npu/lib/libtorch_npu.so: undefined symbol: HcclCommInitRootInfoConfig",
        "OSError: /x/libop_plugin.so: undefined symbol: aclnnFoo",
    )),
    ("kernel-bfloat16", ("float16",), (
        "EZ9999: Cannot find bin of op MatMulV3, integral key 0/1/|bf16/ND/bf16/ND/bf16/ND/.",
        "Cannot find bin of op SwiGlu, integral key 0/|bfloat16/ND/",
    )),
    ("chip-without-bfloat16", ("--dtype float16",), (
        "[ascend310p3] start\nCannot find bin of op SwiGlu, integral key 0/|bf16/ND/bf16/ND/",
        "Soc version Ascend910PremiumA\nCannot find bin of op MatMulV3, integral key 0/1/|bf16/ND/.",
    )),
    ("complex-dtype", ("not tensor.float()",), (
        "RuntimeError: call aclnnMul failed, detail:EZ1001: Tensor self not implemented for DT_COMPLEX64, should be in dtype support list [DT_FLOAT16,DT_FLOAT]",
        "AclNN_Parameter_Error(EZ1001): Tensor self not implemented for DT_COMPLEX32, \nshould be in dtype support list [DT_FLOAT].",
    )),
    # memory, by what ran
    ("memory-loading", ("weights themselves", "quantised model"), (
        '  File "/x/site-packages/transformers/modeling_utils.py", line 3500, in from_pretrained\nRuntimeError: ' + FULL,
        "RuntimeError: " + FULL + '\n  File "/root/vllm-omni/vllm_omni/worker/npu_worker.py", line 98, in _create_worker',
        '  File "/x/torch/nn/modules/module.py", line 1340, in to\nRuntimeError: ' + FULL,
    )),
    ("memory-training", ("gradient checkpointing",), (
        '  File "/x/site-packages/transformers/trainer.py", line 3300, in training_step\nRuntimeError: ' + FULL,
        '  File "/x/mindspeed/core/optimizer/adamw.py", line 91, in step\nRuntimeError: ' + FULL,
    )),
    ("memory-serving", ("--max-num-batched-tokens",), (
        'ERROR [core.py:396]   File "/x/vllm/v1/worker/gpu_worker.py", line 205, in determine_available_memory\nERROR [core.py:396] RuntimeError: ' + FULL,
        '  File "/x/vllm_ascend/worker/model_runner_v1.py", line 3032, in _dummy_run\nRuntimeError: ' + FULL,
    )),
    ("memory-pictures", ("enable_tiling",), (
        '  File "/x/diffusers/models/autoencoders/autoencoder_kl.py", line 290, in decode\nRuntimeError: ' + FULL,
        '  File "/x/ComfyUI/comfy/ldm/wan/vae.py", line 209, in forward\nRuntimeError: ' + FULL,
    )),
    # compiling of models
    ("compile-operator", ("--enforce-eager", "rotary_embedding"), (
        "RuntimeError: Failed running call_function _C.rotary_embedding(*(FakeTensor(..., device='npu:0', size=(s1,))), **{}):",
        "NotImplementedError: _C_ascend::rotary_embedding: attempted to run this operator with Meta tensors, but there was no fake impl or Meta kernel registered for this operator.",
        "torch._dynamo.exc.Unsupported: unsupported operator: my.rotary_embedding.default",
        "torch._subclasses.fake_tensor.UnsupportedOperatorException: npu.rotary_embedding.default",
    )),
    ("compile-backend", ("TORCHDYNAMO_DISABLE=1",), (
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nAssertionError: Device npu not supported",
        "torch._dynamo.exc.BackendCompilerFailed: backend='npu_backend' raised:\nRuntimeError: x",
    )),
    # devices
    ("cuda-absent", ("npu",), (
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "pynvml.nvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
    )),
    ("precision-refused", ("toprope devices",), (
        "ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0",
        "ValueError: fp16 mixed precision requires a GPU (not 'cpu').",
    )),
    ("device-refused", ("does not take the NPU",), (
        "ValueError: Unsupported device: npu, must be one of ['cpu', 'cuda']",
        "RuntimeError: device type npu is not supported by this backend",
    )),
    ("generator-device", ("torch.Generator",), (
        "ValueError: Cannot generate a cpu tensor from a generator of type npu.",
        "RuntimeError: Expected a 'npu' device type for generator but found 'cpu'",
    )),
    ("meta-tensor", ("never loaded",), (
        "NotImplementedError: Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty()",
        "RuntimeError: Tensor.item() cannot be called on meta tensors",
    )),
    ("not-linked", ("import torch_npu",), (
        "RuntimeError: PyTorch is not linked with support for npu devices",
        "RuntimeError: PyTorch is not linked with support for privateuseone devices",
    )),
    ("torchvision-release", ("in one command",), (
        "RuntimeError: operator torchvision::nms does not exist",
        "RuntimeError: Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision versions are incompatible",
    )),
    # training
    ("unused-parameters", ("find_unused_parameters",), (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons",
    )),
    ("no-gradient", ("enable_input_require_grads",), (
        "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
        "[rank1]: RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
    )),
    ("not-a-number", ("overflow",), (
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    )),
    ("index-vocabulary", ("resize_token_embeddings",), (
        "IndexError: index out of range in self",
        "[rank0]: IndexError: index out of range in self",
    )),
    ("deepspeed-operator", ("DS_ACCELERATOR=npu",), (
        "AssertionError: CUDA_HOME does not exist, unable to compile CUDA op(s)",
        "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'",
    )),
    ("data-loader", ("num_workers=0",), (
        "RuntimeError: DataLoader worker (pid 1620) is killed by signal: Killed. ",
        "RuntimeError: DataLoader worker (pid(s) 2287) exited unexpectedly",
    )),
    # weights
    ("weights-only", ("weights_only=False",), (
        "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default value",
        "WeightsUnpickler error: Unsupported global: GLOBAL numpy.core.multiarray._reconstruct was not an allowed global",
    )),
    ("checkpoint-device", ("map_location",), (
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        "RuntimeError: Attempting to deserialize object on NPU device 3 but torch.npu.device_count() is 1.",
    )),
    ("checkpoint-damaged", ("git lfs pull",), (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
    )),
    ("tokenizer", ("transformers",), (
        "ValueError: Tokenizer class Qwen2Tokenizer does not exist or is not currently imported.",
        "Exception: data did not match any variant of untagged enum ModelWrapper at line 757458 column 3",
    )),
    ("architecture-unknown", ("newer release",), (
        "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'qwen3next'",
        "ValueError: Model architectures ['Qwen9ForCausalLM'] are not supported for now.",
    )),
    # MindSpore, Paddle, ONNX Runtime
    ("mindspore-kernel", ("run_check",), (
        "CompileGraph failed: Can not find any available kernel info for: HSwish. Maybe the operator can not supported on Ascend platform.",
        "RuntimeError: Can not select a valid kernel info for [Default/Conv3D-op1]",
    )),
    ("mindspore-version", ("run_check",), (
        "[WARNING] ME(16848,MainProcess):2023-10-12 [x.py:357] MindSpore version 2.1.1 and Ascend AI software package (Ascend Data Center Solution)version 1.82 does not match, the version of software package expect one of ['1.84']",
        "MindSpore version 2.2.14 and \"te\" wheel package version 7.0 does not match. For details, refer to the installation guidelines",
    )),
    ("mindspore-library", ("libcann_kb.so",), (
        "Load dynamic library: libmindspore_ascend.so.2 failed. libcann_kb.so: cannot open shared object file: No such file",
        "Load dynamic library: libmindspore_ascend.so.1 failed. libcann_kb.so: undefined symbol: x",
    )),
    ("mindspore-line", ("run_check",), (
        "[ERROR] DEVICE(246,ffff807c8ac0,python):2023-08-10-12:33:06.836.235 [mindspore/ccsrc/runtime/device/kernel_runtime_manager.cc:136] WaitTaskFinishOnDevice] SyncStream failed",
        "[ERROR] KERNEL(40354,python):2023-10-13 [mindspore/ccsrc/kernel/oplib/op_info_utils.cc:172] LoadOpInfoJson] Get op info json suffix path failed, soc_version: Ascend310P3",
    )),
    ("paddle-error", ("paddle-custom-npu",), (
        "RuntimeError: (PreconditionNotMet) op [pd_op.full_with_tensor] kernel output args (0) defs should equal op outputs (1)",
        "RuntimeError: (NotFound) The kernel `deformable_conv` is not registered.",
    )),
    ("onnx-node", ("CPUExecutionProvider",), (
        "[E:onnxruntime:, sequential_executor.cc:514] Non-zero status code returned while running Conv node. Name:'/features.0/Conv' Status Message: x",
        "Fail: [ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Expand node. Name:'Expand_12'",
    )),
    ("onnx-provider", ("onnxruntime-cann",), (
        "UserWarning: Specified provider 'CANNExecutionProvider' is not in available provider names.Available providers: 'CPUExecutionProvider'",
        "ValueError: specified provider 'CANNExecutionProvider' is not in available provider names",
    )),
    ("protobuf", ("pip install",), (
        "TypeError: Descriptors cannot be created directly.",
        "ImportError: cannot import name 'builder' from 'google.protobuf.internal'",
    )),
    ("python-old", ("newer Python",), (
        "TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'",
        "TypeError: 'ABCMeta' object is not subscriptable",
    )),
    ("encoding", ("PYTHONUTF8",), (
        "UnicodeEncodeError: 'ascii' codec can't encode characters in position 0-3: ordinal not in range(128)",
        "UnicodeDecodeError: 'ascii' codec can't decode byte 0xe4 in position 3: ordinal not in range(128)",
    )),
    # containers, Kubernetes, processes
    ("pod-pending", ("kubectl describe node",), (
        "Warning  FailedScheduling  31s  default-scheduler  0/3 nodes are available: 3 Insufficient huawei.com/Ascend910. preemption: 0/3",
        "Warning  FilteringFailed   96s (x13 over 98s)  hami-scheduler  1 nodes ModeNotFit(devserver-bms)",
        "vcjob: 1 node check failed. for details,log by search keywords <checkNodeNPUByTask : check Node controller01 label [accelerator-type] Failed>",
    )),
    ("pod-admission", ("device plugin",), (
        "Warning  UnexpectedAdmissionError  73s  kubelet  Allocate failed due to rpc error: code = Unavailable desc = transport is closing, which is unexpected",
        "Reason: UnexpectedAdmissionError",
    )),
    ("image-platform", ("exec format error",), (
        "WARNING: The requested image's platform (linux/amd64) does not match the detected host platform (linux/arm64/v8)",
        "The requested image's platform (linux/arm64) does not match the detected host platform (linux/amd64/v4) and no specific platform was requested",
    )),
    ("other-processor", ("uname -m",), (
        "exec /usr/bin/bash: exec format error",
        "docker: no matching manifest for linux/arm64/v8 in the manifest list entries.",
        "ImportError: /x/lib.so: wrong ELF class: ELFCLASS32",
    )),
    ("docker-gpus", ("/dev/davinci_manager",), (
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        "Error response from daemon: unknown or invalid runtime name: nvidia",
    )),
    ("docker-socket", ("usermod",), (
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
    )),
    ("image-pull", ("docker login",), (
        "Error response from daemon: manifest for quay.io/ascend/vllm-ascend:v9 not found: manifest unknown",
        "Error response from daemon: pull access denied for ascendhub/x, repository does not exist",
    )),
    ("signal-received", ("tmux",), (
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12345 got signal: 1",
        "Sending process 2919043 closing signal SIGHUP",
    )),
    ("ray-cluster", ("ray start",), (
        "[2025-07-23 10:05:49,679 W 51000 51000] gcs_rpc_client.h:151: Failed to connect to GCS at address 192.168.2.40:6379 within 5 seconds.",
        "RuntimeError: Version mismatch: The cluster was started with:",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    )),
    ("served-model", ("/v1/models",), (
        '{"object":"error","message":"The model `qwen2.5` does not exist.","type":"NotFoundError","param":null,"code":404}',
        "openai.NotFoundError: Error code: 404 - {'message': 'The model `glm` does not exist.'}",
    )),
    ("hub-access", ("HF_TOKEN",), (
        "OSError: You are trying to access a gated repo.",
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/x/resolve/main/config.json",
    )),
    ("file-mode", ("chmod",), (
        "check path: config.json failed, by: check other group permission failed: curent permissionis 4, but required no greater than 0.",
        "check path: weights failed, by: check owner permission failed: current user is not the owner",
    )),
    ("libstdcxx", ("libstdcxx-ng",), (
        "ImportError: /lib64/libstdc++.so.6: version `CXXABI_1.3.13' not found (required by /x/lib/libicui18n.so.73)",
        "OSError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.30' not found",
    )),
    ("soc-unsupported", ("ascend310b1",), (
        "  SOC_VERSION ascend310b1 does not support, the support list is",
        "RuntimeError: not support soc_version ascend310b1",
    )),
    ("numpy-names", ("numpy<1.24",), (
        "AttributeError: module 'numpy' has no attribute 'int'.",
        "AttributeError: module 'numpy' has no attribute 'bool'.",
    )),
    ("set-env", ("set_env.sh",), (
        "bash: /usr/local/Ascend/ascend-toolkit/set_env.sh: No such file or directory",
        "/bin/sh: 1: source: not found",
    )),
    ("ascend-command", ("driver/tools",), (
        "bash: hccn_tool: command not found",
        "start.sh: line 4: atc: command not found",
    )),
    ("build-isolation", ("--no-build-isolation",), (
        "      ModuleNotFoundError: No module named 'torch'\n      [end of output]\n error: subprocess-exited-with-error",
        "ModuleNotFoundError: No module named 'pybind11'\nERROR: Failed building wheel for x",
    )),
    ("npu-said-absent", ("toprope devices",), (
        "RuntimeError: NPU is selected as device, but torch_npu is not available. Please ensure that the torch_npu package is installed",
        "RuntimeError: No NPU devices were found",
    )),
    ("model-settings", ("transformers",), (
        "TypeError: Invalid type of HuggingFace config. Expected type: <class 'a.VLConfig'>, but found type: <class 'b.VLConfig'>",
        "ValueError: rope_scaling should have a 'rope_type' key",
    )),
    ("json-invalid", ("HTML",), (
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "requests.exceptions.JSONDecodeError: Extra data: line 1 column 5 (char 4)",
    )),
    ("chat-template", ("--chat-template",), (
        "ValueError: As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template",
        "jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/user/assistant/...",
    )),
    ("option-needed", ("--enable-",), (
        "openai.BadRequestError: Error code: 400 - {'message': '\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'}",
        "ValueError: this model requires --enable-expert-parallel",
    )),
    ("hydra-option", ("+KEY=VALUE",), (
        "Could not override 'actor_rollout_ref.rollout.foo'.",
        "omegaconf.errors.ConfigAttributeError: Key 'use_kl_loss' is not in struct",
    )),
    ("lora-modules", ("all-linear",), (
        "ValueError: Target modules {'q_proj', 'v_proj'} not found in the base model. Please check the target modules",
        "ValueError: Target module QuantLinear() is not supported. Currently, only the following modules are supported",
    )),
    ("fp16-gradients", ("float32",), (
        "ValueError: Attempting to unscale FP16 gradients.",
        "[rank2]: ValueError: Attempting to unscale FP16 gradients.",
    )),
    ("data-set", ("column",), (
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
        "pyarrow.lib.ArrowInvalid: JSON parse error: Column() changed from object to array in row 0",
    )),
    ("collectives-differ", ("TORCH_DISTRIBUTED_DEBUG",), (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: X",
        "RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.",
    )),
    ("server-refused", ("no_proxy",), (
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=8000): Max retries exceeded with url: /v1/models",
        "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host 127.0.0.1:30000 ssl:default",
        "ConnectionRefusedError: [Errno 111] Connection refused",
    )),
    ("main-guard", ("__main__",), (
        "        current process has finished its bootstrapping phase.",
        "AssertionError: daemonic processes are not allowed to have children",
    )),
    ("cannot-pickle", ("top of a module",), (
        "AttributeError: Can't pickle local object 'get_dataset.<locals>.fn'",
        "TypeError: cannot pickle '_thread.lock' object",
        "RuntimeError: Failed to unpickle serialized exception",
    )),
    ("file-system", ("dmesg",), (
        "OSError: [Errno 116] Stale file handle: '/nfs/models/x.safetensors'",
        "OSError: [Errno 5] Input/output error",
    )),
    ("pod-start", ("--previous",), (
        "Warning  BackOff  2m (x10 over 5m)  kubelet  Back-off restarting failed container ascend-device-plugin in pod",
        'MountVolume.SetUp failed for volume "ascend-driver" : hostPath type check failed: /usr/local/Ascend/driver is not a directory',
    )),
    ("glog-line", ("its own reason",), (
        'E20241122 10:02:57.047970 281462569663328 ImageProcessorDptr.hpp:819] Failed to recognize Ascend chip. (Code = -1)',
        "E1122 10:02:57.047970 28146 engine.cc:81] the graph was not loaded",
    )),
    ("model-files", ("config.json",), (
        "RuntimeError: Cannot find any model weights with `/models/Qwen3-8B`",
        "ValueError: No supported config format found in /models/qwen.",
    )),
    ("command-127", ("source set_env.sh",), (
        "returned non-zero exit status 127.",
        "make: *** [Makefile:12: kernels] Error 127",
    )),
    ("flash-attention-absent", ("sdpa",), (
        "ImportError: Flash Attention 2 is not available. Please refer to the documentation",
        "ValueError: FlashAttention only supports Ampere GPUs or newer.",
    )),
    ("device-count", ("toprope devices",), (
        "ValueError: World size (16) is larger than the number of available NPUs (8) in this node.",
        "RuntimeError: Invalid device ordinal 8, only 8 devices are visible",
    )),
    ("mixed-dtypes", ("FSDP",), (
        "ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32",
        "AssertionError: all parameters must have the same dtype",
    )),
    ("recomputed", ("in place",), (
        "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have different metadata",
        "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.npu.FloatTensor [2]]",
    )),
    ("resume-differs", ("ZeRO 3",), (
        "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
        "RuntimeError: size mismatch for weight: copying a param with shape torch.Size([32000, 4096]), the shape in current model is torch.Size([0]).",
    )),
    ("part-missing", ("lacks a part",), (
        "RuntimeError: Mooncake Store L2 adapter requires the C++ Mooncake extension. Build with: X pip install -e .",
        "[ERROR] fastdeploy/runtime/runtime_option.cc(133)::UsePaddleBackend\tThe FastDeploy didn't compile with Paddle Inference.\nAborted (core dumped)",
    )),
    ("value-refused", ("change what the text names",), (
        "ValueError: At most 1 image(s) may be provided in one request.",
        "AssertionError: micro batches must be at least the number of stages",
    )),
    ("ranks-late", ("first error of any",), (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: k (world_size=2, worker_count=1, timeout=0:30:00)",
        "Timed out initializing process group in store based barrier on rank: 0",
    )),
    ("length-over-model", ("--max-model-len",), (
        "ValueError: The decoder prompt (length 40000) is longer than the maximum model length of 32768.",
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
    )),
    ("library-missing", ("libgl1",), (
        "ImportError: libglib-2.0.so.0: cannot open shared object file: No such file or directory",
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
    )),
    ("no-cache-memory", ("--mem-fraction-static",), (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "ValueError: No available memory for the cache blocks",
    )),
    ("conda-channel", ("openblas",), (
        "PackagesNotFoundError: The following packages are not available from current channels:",
        "ResolvePackageNotFound:",
    )),
    ("build-warning", ("-Wno-error",), (
        "x.h:12:3: error: object backing the pointer will be destroyed [-Werror,-Wdangling-assignment-gsl]",
        "kernel.cpp:4:1: error: unused variable 'x' [-Werror=unused-variable]",
    )),
    ("error-line", ("read the lines around it",), (
        "2025-06-12 08:08:24,544 - server - ERROR - engine init returned -1 for the second time",
        "ERROR: building the image ended with an unknown state at step 4",
    )),
]  # fmt: skip
