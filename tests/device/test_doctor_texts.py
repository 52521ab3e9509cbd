# ruff: noqa: E501 - a row of the table is one line
"""Error texts of public threads, each with the cause and cure that `toprope doctor` gives; the first cause of logs.

The lines are short excerpts round the exact error; the threads are the sources of the entries.

Holds `toprope.codes.catalogue`.
"""

import io
import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from doctor_kinds import KINDS
from toprope.cli import main
from toprope.codes import Explanation, in_log, in_text
from toprope.codes.catalogue import rules

pytestmark = pytest.mark.process

TEXTS = [
    ("Config_Error_Ranktable(E10014): Value /usr/local/x.json for ranktable variable topo_file path is invalid. Expected", "rank-table-path", "/usr/local/x.json"),
    ("ERROR: No matching distribution found for triton-ascend==3.2.1", "pip-no-version", "index"),
    ("    torch-npu 2.1.0.post3 depends on torch==2.1.0+cpu", "torch-cpu-conflict", "--no-deps"),
    ("AttributeError: '_OpNamespace' '_C' object has no attribute 'apply_repetition_penalties_'", "cuda-operators", "pair"),
    ("ModuleNotFoundError: No module named 'torchnpugen'", "torchnpugen-missing", "revision"),
    ("-- CANN: Missing libopsproto.so. Turning off HAVE_CANN", "opencv-opsproto", "23936"),
    ("RuntimeError: Cannot re-initialize NPU in forked subprocess. To use NPU", "forked", "VLLM_WORKER_MULTIPROC_METHOD"),
    # text, expected cause, a word of the explanation or its cure
    ("dcmi module initialize failed. ret is -8005", "dcmi -8005", "other container"),
    ("dcmi model initialized failed, because the device is used. ret is -8020", "dcmi -8020", "docker ps"),
    ("failed to get device health:ret code: -8010,health code: 4", "dcmi -8010", "plugin"),
    ("npu-smi info: DCMI error -8013", "dcmi -8013", "host"),
    ("dcmi_get_card_list failed, ret is -8255", "dcmi -8255", "update the driver"),
    ("ImportError: /opt/torch_npu/lib/libtorch_npu.so: undefined symbol: _ZN5torch10ValueErrorC1EPKcz", "symbols-torch", "same release"),
    ("OSError: /x/libop_plugin_atb.so: undefined symbol: _ZN3atb15CreateOperationINS_5infer14GroupTopkParamEEEi", "symbols-atb", "NNAL"),
    ("OSError: /n/cxx_abi_1/lib/libtbe_adapter.so: undefined symbol: _ZN3Mki2DlC1ERKNSt7__cxx1112basic_stringIcE", "symbols-atb", "NNAL"),
    ("error = /o/libops_host_cpu.so: undefined symbol: _ZN2ge14GetShapeErrMsgEjRKSsS1_", "symbols", "one CANN"),
    ("ImportError: vllm_ascend_C.abi3.so: undefined symbol: _ZN3c104impl3cow11cow_deleterEPv", "symbols-torch", "toprope doctor"),
    ("GetVisibleDevices:[INIT][DEFAULT]set ASCEND_RT_VISIBLE_DEVICES:4 error, input data rang[0-2)", "mask-range", "[0-2)"),
    ("set ASCEND_RT_VISIBLE_DEVICES:[7] error, input data rang[0-4)", "mask-range", "=7 names"),
    ("Reason: Set visible device failed, invalid device=1, input visible devices:1", "mask-card", "npu:0"),
    ('Error setting ASCEND_RT_VISIBLE_DEVICES: local range: [8, 12) base value: "0,1,2,3,4,5,6,7"', "mask-data-parallel", "--data-parallel-size-local"),
    ("Invalid device ID 8. Set drv devId to 8. The valid device range is [0, 7).", "device-range", "[0, 7)"),
    ("AssertionError: Expects tensor to be on the compute device npu:15, was on npu:0", "ray-device", "RAY_EXPERIMENTAL"),
    ("open /dev/davinci_manager failed: Permission denied, drvErr=87", "davinci-permission", "HwHiAiUser"),
    ("Get physical device number failed, err: 87", "drvErr 87", "other container"),
    ("Failed to drvGetPlatformInfo, ret=4[FUNC:DrvGetPlatformInfo]", "drvErr 4", "npu-smi info"),
    ("[drv api] halSqCqAllocate failed: device_id=3, drvRetCode=14!", "drvErr 14", "25.5.1"),
    ("[drv api] halCqReportRecv failed: device_id=0, drv_ret_code=33", "drvErr 33", "reset the card"),
    ("halGetDeviceInfo get device type version failed , ret:4", "drvErr 4", "container"),
    ("open /dev/davinci0 failed: No such file or directory", "davinci-missing", "--device"),
    ("DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)", "driver-console", "-8020"),
    ("socket type[1], listen on ip[192.168.20.160] and specific port[16666] fail.", "port-listen", "HCCL_NPU_SOCKET_PORT_RANGE"),
    ("[ServerInit]call trace: hcclRet -> 19", "HcclResult 19", "hccn_tool"),
    ("[ServerInit]call trace: hcclRet -> 7", "HcclResult 7", "HCCL_HOST_SOCKET_PORT_RANGE"),
    ("HCCL function error: hcclCommInitRootInfoConfig(numRanks, &rootInfo), error code is 5", "HcclResult 5", "HCCL_OP_EXPANSION_MODE"),
    ("OPS function error: HcclAllreduce, error code is 6", "HcclResult 6", "HCCL_SOCKET_IFNAME"),
    ("HCCL function error: HcclGetRootInfo(&hcclID), error code is 7", "HcclResult 7", "port"),
    ("HCCL function error: hcclCommInitRootInfoConfig(n), error code is 15", "HcclResult 15", "CANN"),
    ("HCCL function error: HcclCommInitRootInfo(n), error code is 19", "HcclResult 19", "UP"),
    ("AllGatherHcclRunner:0 HcclCommInitRootInfo fail, error:2, rank:1", "HcclResult 2", "memory"),
    ("[Init][RaRdma]errNo[0x0000000005000013] rdma init fail", "HcclResult 19", "hccn.conf"),
    ("Nnopbase fails to invoke the HcclAllocComResourceByTiling function of the hccl module. ret = 9, comm = 0x1", "HcclResult 9", "failed first"),
    ("this package does not support hrtRaAiQpCreate for device, please change new package", "driver-old", "update driver"),
    ("stream setup failed, retCode=0x7020010.[FUNC:SyncGetDevMsg]", "0x7020010", "last run"),
    ("create thread failed, retCode=0x7110004", "0x7110004", "ulimit"),
    ("Create capture stream failed, stream_id=1987, error=117571619.", "0x7020023", "fewer sizes"),
    ("query failed, retCode=0x7030010", "0x7030010", "RT_ERROR_STREAM_SYNC_TIMEOUT"),
    ("EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last training process is running.", "EJ0001", "10 s"),
    ("Communication_Error_Bind_IP_Port(EJ0003): Failed to bind the IP port.", "EJ0003", "HCCL_IF_BASE_PORT"),
    ("EJ0002: [PID: 38079] The network port is down.", "EJ0002", "hccn_tool"),
    ("EI9999: Inner Error!", "EI9999", "plog"),
    ("EZ9903: [PID: 1] rtMemcpyAsync failed", "EZ9903", "plog"),
    ("EH0003: Path /tmp/acl.json is invalid. Reason: file open failed.", "EH0003", "can be read"),
    ("Communication_Error_Bind_IP_Port(EI0019): Failed to enable listening", "EI0019", "HCCL_IF_BASE_PORT"),
    ("Execution_Error_ROCE_CQE(EI0013): An error CQE occurred during operator execution.", "EI0013", "other side"),
    ("EI0009: [PID: 2225827] Transport init error. Reason: [Create][DestLink]Create Dest error!", "EI0009", "other rank"),
    ("Config_Error_Ranktable(EI0014): The ranktable information check failed", "EI0014", "hccl_rootinfo.json"),
    ("Resource_Error_Insufficient_Device_Memory(EI0011): Failed to allocate", "EI0011", "memory"),
    ("EI0099: something new", "EI0099", "HCCL_SOCKET_IFNAME"),
    ("EJ0099: something new", "EJ0099", "10 s"),
    ("EC0010: Failed to import Python module [AttributeError: `np.float_` was removed in the NumPy 2.0 release.", "numpy-2", "numpy<2"),
    ("ModuleNotFoundError: No module named 'tbe.common'", "cann-python", "set_env.sh"),
    ("EH9999: [Init][Env]init env failed!", "cann-python-packages", "decorator"),
    ("failed: /opt/conda/lib/libgomp.so.1: cannot allocate memory in static TLS block", "static-tls", "LD_PRELOAD=/opt/conda/lib/libgomp.so.1"),
    ("npu-smi: error while loading shared libraries: libc_sec.so: cannot open shared object file", "libascend_hal", "runtimeClassName"),
    ("DCMIError_LibraryNotFound: Library Not Found", "libdcmi", "/usr/local/dcmi"),
    ("bash: npu-smi: command not found", "npu-smi-missing", "mount"),
    ("ModuleNotFoundError: No module named 'torch_npu'", "no-torch-npu", "pip install torch-npu"),
    ("AttributeError: module 'torch_npu' has no attribute '_npu_rotary_embedding'", "torch-npu-attribute", "_npu_rotary_embedding"),
    ("AttributeError: module 'torch' has no attribute 'npu'", "torch-npu-not-imported", "import torch_npu"),
    ("AssertionError: Torch not compiled with CUDA enabled", "cuda-in-program", "transfer_to_npu"),
    ("bitsandbytes was compiled without GPU support. 8-bit optimizers are unavailable", "cuda-package", "bitsandbytes"),
    ("No module named 'vllm_ascend.distributed'", "vllm-plugin", "pair"),
    ("Failed to import vllm_ascend_C:No module named 'vllm_ascend.vllm_ascend_C'", "vllm-custom-ops", "without harm"),
    ("AttributeError: module 'triton.language' has no attribute 'constexpr_function'", "python-attribute", "triton-ascend"),
    ("ModuleNotFoundError: No module named 'triton'", "triton", "triton-ascend"),
    ("E90003: [PID: 9038] Compile operator failed, cause: bfloat16 of tbe.dsl.transdata is not supported.", "bfloat16-chip", "--dtype float16"),
    ("No platform detected, vLLM is running on UnspecifiedPlatform", "no-platform", "vllm-ascend"),
    ("Cannot find bin of op AddRmsNormQuant, integral key 0/1/|float16/ND", "operators-package", "Ascend-cann-kernels"),
    ("EZ1001: binary_info_config.json failed, please check if the opp_kernel package is installed", "operators-package", "Ascend-cann-kernels"),
    ("Ascend opp_kernels is not installed", "operators-package", "set_env.sh"),
    ("aclnnAddRmsNormBias or aclnnAddRmsNormBiasGetWorkspaceSize not in libopapi.so, or libopapi.sonot found.", "operator-missing", "aclnnAddRmsNormBias"),
    ("the socversion Ascend910B1 of bin package does not match the current device socverison Ascend310P3.", "wrong-chip", "310p"),
    ("bishengir-compile: for the --target option: Cannot find option named 'Ascend310P3'!", "unknown-chip", "release"),
    ("CANN version mismatch. The build version is 5.1.0, but the current environment version is 5.1.2.", "cann-mismatch", "5.1.0"),
    ("[SqCqManage]Alloc sq cq fail, stream_id=1984", "streams-exhausted", "25.5.1"),
    ("Insufficient_Stream_Resources(EL0009): The stream resources are insufficient.", "streams-exhausted", "capture fewer"),
    ("ASCEND_LAUNCH_BLOCKING is enabled, incompatible with ACL graph", "blocking-and-graphs", "unset"),
    ("HCCL_BUFFSIZE is too SMALL, maxBs = 512, NEEDED_HCCL_BUFFSIZE((a * b) * 2) = 609MB, HCCL_BUFFSIZE=200MB.", "hccl-buffer-needed", "HCCL_BUFFSIZE=609"),
    ("the hccl buffsize is too small", "hccl-buffer", "raise HCCL_BUFFSIZE"),
    ("RuntimeError: NPU out of memory. Tried to allocate 22.00 MiB", "out-of-memory", "expandable_segments"),
    ("Call rtMalloc fail, purpose: page caching, type = 2, size:3221291008", "device-memory", "npu-smi info"),
    ("Memory_Allocation_Failure(EL0004): Failed to allocate memory.", "device-memory", "HCCL_BUFFSIZE"),
    ("Free memory on device (8.0/64.0 GiB) on startup is less than desired GPU memory utilization (0.9, 57.6 GiB).", "memory-taken", "8.0 of 64.0"),
    ("ValueError: No available memory for the cache blocks. Try increasing it", "no-cache-memory", "--max-model-len"),
    ("System memory request exceeds memory available in /dev/shm.", "shared-memory", "--shm-size"),
    ("Inference server exited with code 137", "killed", "host"),
    ("errorStr: The DDR address of the MTE instruction is out of range.", "operator-out-of-range", "HCCL_BUFFSIZE"),
    ("Aicore kernel execute failed, device_id=0, fault kernel_name=Add_ee98_high_performance_210000000", "fault-kernel", "Add_ee98"),
    ("[Error]: The vector core execution is abnormal.", "core-exception", "ASCEND_LAUNCH_BLOCKING"),
    ("Kernel task happen error, retCode=0x2a, [aicpu exception].", "aicpu-exception", "convert"),
    ("CAUTION: The operator 'torchvision::nms' is not currently supported on the NPU backend and will fall back to run on the CPU.", "cpu-fallback", "not an error"),
    ("RuntimeError: modulated_deform_conv_forward_impl: implementation for device npu:0 not found.", "operator-not-implemented", "FORCE_NPU"),
    ("RuntimeError: Expected all tensors to be on the same device, but found at least two devices, npu:0 and cpu!", "two-devices", "set_device"),
    ("RuntimeError: Expected all tensors to be on the same device. Expected NPU tensor, please check whether the input tensor device is correct.", "two-devices", "set_device"),
    ("Reason: The IP address and port have been bound already.", "port-taken", "HCCL_IF_BASE_PORT"),
    ("wait socket establish timeout, role[1] rank[12] timeout[120]", "link-timeout", "tls"),
    ('TopoDetect ERROR occur !!! fault_info["Failed to connect agent[1,3,5,7,]"]', "rank-missing", "1,3,5,7"),
    ("topo exchange agent get socket timeout! timeout[120]", "group-timeout", "HCCL_SOCKET_IFNAME"),
    ("Watchdog caught collective operation timeout: WorkHCCL(SeqNum=196, OpType=ALLREDUCE, Timeout(ms)=3600000)", "collective-timeout", "ALLREDUCE number 196"),
    ("[ERROR] TBE Subprocess[task_distribute] raise error[], main process disappeared!", "worker-ended", "first error"),
    ("device_ip is invalid in ranktable file", "rank-table", "hccn.conf"),
    ("docker: Error response from daemon: unknown or invalid runtime name: ascend.", "ascend-runtime", "docker info"),
    ("failed to mount src: /usr/local/bin/npu-smi.failed to mount dev.", "ascend-mount", "/usr/local/bin/npu-smi on the host"),
    ("npu-smi set device-share -i 6 -c 0 -d 1: exit status 203", "device-share", "end all programs"),
    ("NPU function error: AclrtSynchronizeStream, error code is 507049", "507049", "sleep mode"),
    ("E39999: Inner Error!", "E39999", "operator"),
    ("call failed, error code is 507036", "507036", "ACL_ERROR_RT_VECTOR_CORE_TRAP_EXCEPTION"),
    ("EZ9999: 2024-05-17-01:30:26.960.959  Op Cast does not has any binary.", "operators-package", "Ascend-cann-kernels"),
    ("npu-smi set device-share -i 1 -c 0 -d 1: npu-smi not found in [/usr/local/sbin/npu-smi]", "npu-smi-missing", "plugin"),
    ("ModuleNotFoundError: No module named 'decorator'", "cann-python-packages", "pip install"),
    ("Current device type: AscendDeviceType.A2 does not match the installed version's device type: AscendDeviceType.A3", "wrong-build", "built for A3"),
    ("AssertionError: local_world_size (8) must be less than or equal to the number of visible devices (2).", "no-visible-device", "(2)"),
    ("RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'", "half-on-cpu", "toprope devices"),
    ("check aicore num failed, phy_id:0, core_need:4, used:6, total:8 Failed to create vdev info. (dev_id=0; ret=-22)", "vnpu-cores", "destroy-vnpu"),
    ("RuntimeError: The Inner error is reported as above, the current working operator name is aclnnRmsNorm.", "working-operator", "aclnnRmsNorm"),
    ("CANN failure 100002: ACL_ERROR_REPEAT_INITIALIZE ; NPU=0 ; expr=aclInit(nullptr);", "100002", "torch_npu initialise it first"),
    ("EZ9999: [PID: 5625] Parse dynamic kernel config fail.", "operators-package", "of another chip"),
    ("RuntimeError: Unsupported device target Ascend. This process only supports one of the ['CPU'].", "mindspore-target", "set_env.sh"),
    ("RuntimeError: Ascend Transfer Engine initialization failed.", "transfer-engine", "ASCEND_MF_STORE_URL"),
    ("hcclCommInitRootInfoConfig(xxx), error code is 11", "HcclResult 11", "HCCL_IF_BASE_PORT"),
    ("Wait links establish completed failed, local role is client. ret[9]", "link-timeout", "hccn_tool"),
    ("get cur vDev's activity info failed, err: retCode: -8255", "dcmi -8255", "driver"),
    ("rtDeviceSynchronize execute failed, reason=[sdma copy error]", "dma-error", "expandable_segments:False"),
    ("there is a sdma error, sdma channel is 2, irqStatus=0x220000", "dma-error", "--max-model-len"),
    ("Available KV cache memory: -0.87 GiB", "no-cache-memory", "--max-model-len"),
    ("EZ1013: In the dynamic shape scenario, the JSON configuration file of operator AddX cannot be found.", "EZ1013", "ASCEND_CUSTOM_OPP_PATH"),
    ("RuntimeError: Distributed package doesn't have NCCL built in", "nccl-missing", "hccl"),
    ("ImportError: /usr/lib64/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by libtriton.so)", "libstdcxx", "conda"),
    ("RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", "address-in-use", "master_port"),
    ("RuntimeError: Can not support soc_version: 104.", "soc-unsupported", "npu-smi info"),
    ("ValueError: Unsupported soc_version: AscendSocVersion.UNDEFINED", "soc-unsupported", "image"),
    ("AclNN_Inner_Error(EZ9903): aclnnX support for Ascend910 is not implemented", "chip-not-implemented", "910B"),
    ("ImportError: libgfortran.so.5: cannot open shared object file: No such file or directory", "library-missing", "LD_LIBRARY_PATH"),
    ("ImportError: libnnopbase.so: cannot open shared object file: No such file or directory", "libhccl", "set_env.sh"),
    # a blind test of 20 threads and 5 more
    ("CapEff: 0000000000000000\nnpu-smi: dcmi module initialize failed. ret is -8005", "capabilities-dropped", "DAC_OVERRIDE"),
    ("crw-rw---- 1 1000 1000 236, 0 Jul 1 10:00 /dev/davinci_manager\ndcmi module initialize failed. ret is -8005", "device-owner", "uid 1000"),
    ("DrvMngGetConsoleLogLevel failed. (ret=4)\ndcmi module initialize failed. ret is -8005", "dcmi -8005", "sudo npu-smi info"),
    ("ra init failed, return[19] devicePhyId_[4], nicPosition[0]", "user-unknown", "getent passwd"),
    ("HcclGetRootInfo(&hcclID), error code is 19\nra init failed, return[19] devicePhyId_[4], nicPosition[0]", "HcclResult 19", "ra init failed"),
    ("import mindie_turbo: undefined symbol: _ZNK6AsdOps3Ops18GetOperationByNameERKSs", "symbols-atb", "cxx_abi_0"),
    ("ImportError: libatb.so: undefined symbol: _ZN3Mki2DlC1ERKNSt7__cxx1112basic_stringIcE", "symbols-atb", "--cxx_abi=1"),
    ("RuntimeError: Unsupported soc version: Ascend950PR 9579", "chip-too-new", "2.11.0"),
    ("AssertionError: Torch not compiled with CUDA enabled", "cuda-in-program", "2.5.1"),
    ('File "/x/site-packages/transformers/modeling_utils.py", line 1\nAssertionError: Torch not compiled with CUDA enabled', "cuda-number", "4.49"),
    ("Successfully installed numpy-2.0.2 torch-npu-2.7.1\nRuntimeError: SetPrecisionMode: NPU function error: at_npu::native::AclSetCompileopt(aclCompileOpt::ACL_PRECISION_MODE, precision_mode), error code is 500001", "numpy-2-installed", 'pip install "numpy<2"'),
    ("AclSetCompileopt(aclCompileOpt::ACL_PRECISION_MODE, precision_mode), error code is 500001", "500001", 'pip install "numpy<2"'),
    ("EE1001: [PID: 1] 2025-07-17-08:06:53.296.370 The argument is invalid.Reason: set ASCEND_RT_VISIBLE_DEVICES:0,2,4,6,1,3,5,7 error, it must be configured in ascending order", "mask-order", "=0,1,2,3,4,5,6,7"),
    ("EE1001: [PID: 1] The argument is invalid.Reason: the stream is of another context", "EE1001", "the stream is of another context"),
    ("EE9999: [PID: 1] get error: phyid:1 realDeviceId:1 is err:0x7010003[FUNC:GetDeviceIndexByPhyId]", "peer-card", "8.1.RC1"),
    ("RuntimeError: NPU out of memory. Tried to allocate 88.00 MiB (NPU 0; 60.96 GiB total capacity; 4.24 GiB already allocated; 4.24 GiB current active; 7.47 MiB free; 4.37 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try", "out-of-memory", "other processes hold about 56.6 GiB"),
    ("NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity; 30.00 GiB already allocated; 30.00 GiB current active; 1.00 GiB free; 58.00 GiB reserved in total by PyTorch)", "out-of-memory", "in pieces"),
    ("NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity; 58.00 GiB already allocated; 58.00 GiB current active; 1.00 GiB free; 58.50 GiB reserved in total by PyTorch)", "out-of-memory", "this process itself"),
    ("Communication_Error_Bind_IP_Port(EJ0003): Failed to bind the IP port.", "EJ0003", "two ranks on one card"),
    ("Failed to connect to target: 10.196.186.72:20064, status: 503900, errmsg: E19999: Inner Error!", "mooncake-memory", "global_segment_size"),
    ("E19999[PID: 144223] 2026-08-04 (E19999):  Call llm::HcclAdapter::GetInstance().HcclCommPrepare(comm, &config, timeout) fail, ret: 0x13[FUNC:Initialize]", "mooncake-memory", "20 GB"),
    ("EZ1001: [PID: 23975] self not implemented for DT_DOUBLE, should be in dtype support list [DT_UINT8,DT_INT8,].", "double-dtype", "float32"),
    ("EZ1001: self not implemented for DT_BFLOAT16, should be in dtype support list [].", "empty-dtype-list", "kernels"),
    ("EZ1001: self not implemented for DT_BFLOAT16, should be in dtype support list [DT_FLOAT,].", "EZ1001", "self not implemented for DT_BFLOAT16, should"),
    ("EE1001: The argument is invalid.Reason: ModelCheckCompatibility failed, supported socVersion=Ascend910B2, but the model socVersion=Ascend910B", "model-chip", "atc --soc_version=Ascend910B2"),
    ("AttributeError: module 'torch_npu.dynamo.torchair' has no attribute 'get_npu_backend'", "torchair", "2.1.0.post5"),
    ("AttributeError: module 'torch_npu' has no attribute '_npu_flash_attention'", "torch-npu-attribute", "library's table"),
    ("ValueError: No available memory for the cache blocks", "no-cache-memory", "--gpu-memory-utilization"),
    ('RuntimeError: grid should be less than 65536! You can try "export TRITON_ALL_BLOCKS_PARALLEL=1"', "grid-size", "TRITON_ALL_BLOCKS_PARALLEL=1"),
    ("[ERROR] [AscPlugin] AscendKernelLaunchWithFlagV2 ret 107000\n[ERROR] [AscPlugin] Kernel: [main_kernel] BlockDim: [65536] kernel launch failure!", "107000", "1 to 65535"),
    ("[ERROR] [AscPlugin] Kernel: [main_kernel] BlockDim: [65536] kernel launch failure!", "block-count", "65535"),
    ("ImportError: ascend_transport.so: cannot open shared object file: No such file or directory", "mooncake-library", "/usr/local/lib"),
    ("ImportError: /x/async_io.so: undefined symbol: _ZN21deepspeed_io_handle_t18_create_io_op_descEbRKN2at6TensorEiPKcbl", "symbols-own", "0.18.7"),
    ("undefined symbol: my_own_function", "symbols-own", "c++filt"),
    ("undefined symbol: _ZN2at4_ops5zeros4callEv", "symbols-torch", "same release"),
    ("ImportError: undefined symbol: aclrtGetSocName", "symbols", "set_env.sh"),
    ("/x/ext.so: undefined symbol: _ZN7c10_npu13getCurrentEv", "symbols-torch-npu", "torch_npu"),
    ("AclNN_Parameter_Error(EZ1001): Tensor scale not implemented for DT_FLOAT16, should be in dtype support list [DT_UINT64, DT_BFLOAT16].", "scale-dtype", "--dtype bfloat16"),
    ("RuntimeError: Failed to load the backend extension: torch_npu.", "autoload", "import torch before triton"),
    ('File "/x/triton/backends/__init__.py", line 1, in _discover_backends\nRuntimeError: Failed to load the backend extension: torch_npu.', "triton-first", "import torch before triton"),
    ("rtStreamSynchronize execute failed, reason=[something new][FUNC:X][FILE:a.cc][LINE:1]", "runtime-call", "something new"),
    ("NPU function error: aclrtFooBar(x), error code is 77", "unknown-code", "aclrtFooBar"),
    ("[GE] ErrorNo: 1343225860(Internal errors) load model failed", "graph-engine-number", "ten digits"),
    ("Build graph failed, ge result = 4294967295", "graph-engine-number", "-1"),
    ("[Parse][X]errNo[0x0000000007000013] something failed", "hccl-number", "0000000007000013"),
    ("[MIE04E13030A] [model_deploy_config] Failed to init model", "mindie", "MIE04E13030A"),
    ("Roce CQ: error cqe status[12], qpn[5]", "link-broken", "12"),
    ("the driver version does not match: firmware and CANN are incompatible", "driver-firmware", "reboot"),
    ("[ERROR] TDT(1234,python):2026-11-29-10:00:00.000.000 [process_mode.cpp:140]1234 something failed", "plog-line", "TDT"),
    ("[2025-05-13 02:25:58.64262] [error] [36815] [hccl_runner.cpp:72] AllGatherHcclRunner:0 get hccl comm fail by rank:1", "atb-line", "hccl_runner.cpp"),
    ("E10001: Value [X] for parameter [--soc_version] is invalid. Reason: not in the list", "E10001", "parameter [--soc_version] is invalid"),
    ("        Call something fail[FUNC:DoIt][FILE:some.cc][LINE:12]", "cann-line", "some.cc"),
    ("E50001: [PID: 3] an error without a table. Reason: the queue is gone", "E50001", "the queue is gone"),
    ("E40099: [PID: 3] the compiler failed. Possible Cause: no module", "E40099", "no module"),
]  # fmt: skip


def words(what: Explanation) -> str:
    return "\n".join((what.means, what.name, what.reason, *what.causes, *what.try_))


@pytest.mark.parametrize(("text", "cause", "word"), TEXTS)
def test_a_text_of_a_thread_has_its_cause_and_its_cure(text: str, cause: str, word: str) -> None:
    found = {each.code: each for each in in_text(text)}
    assert cause in found
    assert word in words(found[cause])
    assert not re.search(r"\{\w+\}", words(found[cause]))
    assert found[cause].sources


@pytest.mark.parametrize(("text", "cause", "word"), TEXTS)
def test_the_cause_comes_first_in_a_log_of_that_text(text: str, cause: str, word: str) -> None:
    lines = text.encode().splitlines()
    log = [b"INFO step 1 loss 0.5", *lines, b"[ERROR] (PID:107001) ERR00100 PTA call acl api failed"]
    first = in_log(log)[0]
    assert cause in [each.what.code for each in in_log(log)]
    assert first.line in range(2, 2 + len(lines))
    assert first.what.order <= next(each.what.order for each in in_log(log) if each.what.code == cause)


def test_every_message_has_a_text() -> None:
    texts = (*(text for text, _, _ in TEXTS), *(text for _, _, each in KINDS for text in each))
    found = {each.code for text in texts for each in in_text(text)}
    named = {rule.what.code for rule in rules() if not rule.values and not rule.family}
    elsewhere = {  # tests/base/test_codes.py, tests/device/test_doctor_threads.py and test_doctor_families.py
        "npu-unsupported", "python-exception",
        "libhccl", "libatb", "autoload", "source-folder", "torchair", "unknown-device", "two-accelerators", "infer-device",
        "no-visible-device", "invalid-device-id", "forked", "aiv-groups", "precision-mode", "watchdog", "shm-broadcast",
        "device-process",
    }  # fmt: skip
    assert named - found - elsewhere == set()


@pytest.mark.parametrize(
    "text",
    [
        "step 107000 of 207001, loss 0.507015, lr 1e-05",
        "loaded libhccl.so and libatb.so from /usr/local/Ascend",
        "HCCL_BUFFSIZE=200, torch_npu imported, npu-smi found, exit code 0",
        "process 507033 ended; wrote 507035 bytes; E19999 rows; 2026-11-29 08:05:12.507034",
        "hcclRet -> 0",
    ],
)
def test_ordinary_lines_of_a_log_say_nothing(text: str) -> None:
    assert in_log([text.encode()] * 200) == ()


CONSEQUENCES = [
    "rank{0}: EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time.",
    "rank{0}: wait socket establish timeout, role[1] rank[{0}] timeout[120]",
    "rank{0}: HCCL function error: hcclCommInitRootInfoConfig, error code is 9",
    "rank{0}: NPU function error: aclrtSynchronizeDevice, error code is 107022",
    "rank{0}: EE9999: Inner Error!",
    "rank{0}: rtDeviceSynchronize execute failed, error code is 507899",
    "rank{0}: [ERROR] ERR02200 DIST call hccl api failed.",
]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["rank3: NPU out of memory. Tried to allocate 2.00 GiB"], "out-of-memory"),
        (["rank2: EJ0001: Failed to initialize the HCCP process.", "retCode=0x7020010"], "EJ0001"),
        (["rank1: error code is 507015", "EZ9999: The DDR address of the MTE instruction is out of range."], "operator-out-of-range"),
        (["rank0: Inference server exited with code 137"], "killed"),
    ],
)  # fmt: skip
def test_the_cause_on_one_rank_comes_before_the_time_outs_of_the_others(lines: Sequence[str], cause: str) -> None:
    chance = random.Random(cause)
    many = [text.format(chance.randrange(8)) for text in CONSEQUENCES * 300]
    chance.shuffle(many)
    for place in (0, 700, len(many)):  # logs of ranks are joined in any order
        log = [*many[:place], *lines, *many[place:]]
        seen = in_log(line.encode() for line in log)
        assert seen[0].what.code == cause
        assert seen[0].line in range(place + 1, place + len(lines) + 1)
        assert {"EI0006", "107022", "507899", "ERR02200"} <= {each.what.code for each in seen[1:]}


def test_of_time_outs_alone_the_first_one_comes_first() -> None:
    seen = in_log(line.encode() for line in ["x", "EI0002: timeout", *CONSEQUENCES * 20])
    assert (seen[0].what.code, seen[0].line, seen[0].count) == ("EI0002", 2, 1)
    assert next(each.count for each in seen if each.what.code == "EI0006") == 20


def test_the_reason_of_a_code_is_that_of_its_own_process() -> None:
    log = [
        b"[rank0]: EE9999: Inner Error!",
        b"[rank1]: rtX execute failed, reason=[of rank 1][FUNC:A]",
        b"[rank0]: EE9999: [PID: 7] 2026-11-29-10:00:00.000.000 rtY execute failed, reason=[of rank 0][FUNC:B][FILE:c.cc]",
    ]
    seen = {each.what.code: each.what for each in in_log(log)}
    assert (seen["EE9999"].reason, seen["EE9999"].open) == ("rtY execute failed, reason=[of rank 0]", True)
    far = in_log([b"EE9999: Inner Error!", *[b"x"] * 20, b"rtX failed, reason=[later][FUNC:A]"])
    assert [each.what.reason for each in far] == [""]


@pytest.mark.parametrize(
    "text", ["CapEff: 0000000000000000", "installed numpy-2.0.2", "crw-rw---- 1 1000 1000 /dev/davinci0"]
)
def test_a_line_that_counts_next_to_a_code_says_nothing_alone(text: str) -> None:
    assert in_log([text.encode()]) == ()
    assert in_log([text.encode(), b"call failed, error code is 507013"])[0].what.code == "507013"


def test_of_an_open_code_with_a_reason_only_the_fitting_causes_are_named() -> None:
    line = b"EE1001: The argument is invalid.Reason: set ASCEND_RT_VISIBLE_DEVICES:4 error, input data rang is wrong"
    seen = in_log([line])[0]
    assert [each[:17] for each in seen.what.causes] == ["`input data rang`"]
    other = in_log([b"EE1001: The argument is invalid.Reason: the stream belongs to another context of this card"])[0]
    assert (other.what.causes, other.what.open) == ((), True)
    bare = in_log([b"EE1001: The argument is invalid"])[0]
    assert len(bare.what.causes) == 3


def test_a_kind_of_line_is_named_where_nothing_else_is_known() -> None:
    line = b"rtFoo execute failed, reason=[new][FUNC:X][FILE:a.cc][LINE:1]"
    assert [each.what.code for each in in_log([line] * 3)] == ["runtime-call"]
    assert "runtime-call" not in [each.what.code for each in in_log([line, b"error code is 507015"])]


def test_a_log_is_named_by_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`doctor train.log` said that train.log is no code of Ascend."""
    log = tmp_path / "train.log"
    log.write_text("bishengir-compile: Cannot find option named 'Ascend910B4-1'!\nNPU out of memory.\n")
    assert main(["doctor", "--json", str(log), "507015"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [each["code"] for each in answer] == ["unknown-chip", "out-of-memory", "507015"]
    for argument, words in ((str(tmp_path), "is a folder"), (str(tmp_path / "no.log"), "there is no file")):
        assert main(["doctor", argument]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_a_log_on_stdin_needs_no_argument(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\x1b[31m" + "\n".join(CONSEQUENCES).encode() + b"\nNPU out of memory.\n")
    for options, read in ((["--json"], json.loads), ([], str)):
        with log.open() as file:
            done = subprocess.run(
                [sys.executable, "-m", "toprope", "doctor", *options],
                stdin=file, capture_output=True, text=True, timeout=120,
            )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        answer = read(done.stdout)
        if options:
            assert (answer[0]["code"], answer[0]["line"], answer[0]["order"]) == ("out-of-memory", 8, 0)
        else:
            assert answer.startswith("out-of-memory\n")
            assert "probably a consequence of out-of-memory" in answer
    piped = [sys.executable, "-m", "toprope", "doctor", "--json"]
    done = subprocess.run(piped, input=log.read_bytes(), capture_output=True, timeout=120)
    assert json.loads(done.stdout)[0]["code"] == "out-of-memory"


def test_words_and_a_log_together(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("error code is 507015\nERR00100\n"))
    assert main(["doctor", "--json", "-", "ERR00100", "drvErr=87", "0x7020010"]) == 0
    codes = [each["code"] for each in json.loads(capsys.readouterr().out)]
    assert codes == ["507015", "ERR00100", "drvErr 87", "0x7020010"]
    monkeypatch.setattr("sys.stdin", io.StringIO("all is well\n"))
    assert main(["doctor", "-"]) == 2
    assert "1 lines of stdin" in capsys.readouterr().err


def test_ten_megabytes_take_seconds() -> None:
    import time

    chance = random.Random(1)
    line = b"[INFO] HCCL(%d,python3):2026-11-29 [hccl_socket.cc:%d] tag[%x] count[%d]"
    log = [line % (chance.randrange(10**6), 5, chance.getrandbits(64), 9) for _ in range(120_000)]
    begin = time.process_time()
    assert in_log(log) == ()
    assert time.process_time() - begin < 5  # 0.5 s elsewhere
