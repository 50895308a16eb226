# FastDecode: one Makefile. `make help` lists what there is.
#
# A folder under common/, kernels/ and services/ is a room: a static library of all its .c files. A new file needs no change here, a new room a
# line of the table of rooms. Files named after an instruction set (ISA below) get its flags and no other file does; those of another
# architecture than CC's are left out.

CC      ?= gcc
CLANG   ?= clang
BUILD   ?= build$(if $(SAN),-$(SAN))
V       ?=
SAN     ?=
WERROR  ?= -Werror
PYTHON  ?= python3
MODEL   ?= models/SmolLM2-135M-Instruct.Q4_1.gguf
VENV    ?= $(BUILD)/venv
Q       := $(if $(V),,@)
, := ,

WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(findstring clang,$(CC)),,-Wno-format-truncation) $(WERROR)
CFLAGS  ?= $(if $(filter address,$(SAN))$(FUZZER),-O1 -g1,-O2 $(if $(SAN),-g1,-g))
# For another architecture than this machine's: make CC=aarch64-linux-gnu-gcc SYSROOT=folder BUILD=folder (make sysroot-arm64 fills one).
SYSROOT ?=
ARCH    := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
OTHERS  := $(if $(filter x86_64,$(ARCH)),,%_avx2.c %_avxvnni.c %_avx512.c %_vnni.c) $(if $(filter aarch64,$(ARCH)),,%_neon.c %_dotprod.c %_i8mm.c)
ifeq ($(origin AR),default)
AR      := $(shell $(CC) -print-prog-name=ar)
endif
# char has a sign on x86-64 and, unasked, none on AArch64.
BASE    := $(SYSROOT:%=--sysroot=%) $(if $(filter aarch64,$(ARCH)),-fsigned-char) -std=c11 -D_GNU_SOURCE -fno-strict-aliasing -ffp-contract=off -fstack-protector-strong -MMD -MP -I. -I$(BUILD)/gen
SANFLAGS := $(if $(FUZZER),-fsanitize=fuzzer-no-link$(,)address$(,)undefined -fno-sanitize-recover=undefined) $(if $(filter address,$(SAN)),-fsanitize=address$(,)undefined -fno-sanitize-recover=undefined)$(if $(filter thread,$(SAN)),-fsanitize=thread)
ALLFLAGS = $(BASE) $(CFLAGS) $(WARN) $(SANFLAGS)
OPENBLAS := $(if $(SYSROOT),-lopenblas,$(shell pkg-config --libs openblas 2>/dev/null || echo -lopenblas))
# The flags of libraries by their names in the table of rooms.
libraries = -Wl,--as-needed $(foreach l,$(sort $1),$(if $(filter openblas,$l),$(OPENBLAS),-l$l)) -lm -lpthread -ldl

# --- what there is ---------------------------------------------------------------------------------------------------
PROTOS   := $(wildcard proto/*.proto)
PB_SRC   := $(PROTOS:proto/%.proto=$(BUILD)/gen/%.pb-c.c)
PAGES    := $(sort $(foreach e,html css js svg,$(wildcard services/gateway/serve/pages/*.$e)))
BINS     := $(patsubst services/%/main.c,$(BUILD)/bin/%,$(wildcard services/*/main.c))
# ThreadSanitizer has nothing to say of a test without threads, and does not follow fork() into a child that begins threads.
UNIT_SRC := $(if $(filter thread,$(SAN)),$(shell grep -lE 'pthread|thread_pool' tests/unit/test_*.c | xargs grep -L 'fork()'),$(wildcard tests/unit/test_*.c))
UNIT     := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/unit/%)
KERNEL   := $(patsubst tests/kernels/%.c,$(BUILD)/tests/kernels/%,$(wildcard tests/kernels/test_*.c))
INTEG    := $(patsubst tests/integration/%.c,$(BUILD)/tests/integration/%,$(wildcard tests/integration/test_*.c))
FUZZ     := $(patsubst tests/fuzz/%.c,$(BUILD)/tests/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
# The same targets without the fuzzer: each build sees that they compile and link, the runs come by turns.
FUZZ_LINKED := $(FUZZ:$(BUILD)/tests/fuzz/%=$(BUILD)/tests/fuzz-linked/%)
# A program that tests in Python ask.
TOOLS    := $(BUILD)/tests/e2e/schema_texts
# Hashes of what the kernels of a level compute, to compare levels of two architectures.
HASHES   := $(BUILD)/tests/kernels/kernel_hashes
SLOW     := $(patsubst %,$(BUILD)/tests/slow/%,kv-worker s-part scheduler)
# The mesh in one process: what the services ask of libc and some of ours is the simulation's (tests/sim/wrap.c), transports are replaced, and frames
# have no pool, which nodes would share.
SIM      := $(BUILD)/tests/sim/mesh
SIM_OBJ  := $(patsubst tests/sim/%.c,$(BUILD)/obj/tests/sim/%.o,$(wildcard tests/sim/*.c)) $(BUILD)/obj/sim/frame.o
SIM_WRAP := malloc calloc realloc aligned_alloc free strdup strndup asprintf mmap munmap madvise eventfd close ppoll clock_gettime getrandom \
    pthread_create rpc_loop_run cpu_count_usable memory_plan_check log_write exchange_is_local generate_accepted places_free_unclaimed attend_free
# The CUDA backend is a shared object of its own. Tests have it twice: emulated on the CPU (tests/cuda), and, by check-gpu, real.
CUDA_HOME ?= $(or $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null)),/usr/local/cuda)
NVCC      := $(wildcard $(CUDA_HOME)/bin/nvcc)
CUDA_ARCH ?= 80 75 86 89 90
CUDA_SRC  := $(wildcard kernels/cuda/*.c kernels/cuda/*.cu)
CUDA_LIB  := $(BUILD)/bin/libfastdecode-cuda.so
EMU_OBJ   := $(patsubst %,$(BUILD)/obj/emulated/%.o,$(filter-out %/gemm.c,$(CUDA_SRC)) $(wildcard tests/cuda/emulate.cpp tests/cuda/gemm_emulated.c))
EMU_LIB   := $(filter-out %/quant.cu.o,$(EMU_OBJ)) $(BUILD)/obj/emulated/tests/cuda/quant_emulated.c.o
# A vector that is not aligned faults on a device: emulated kernels end there too.
EMU_SAN   := -fsanitize=alignment -fno-sanitize-recover=alignment
CUDA_TEST := $(patsubst tests/cuda/%.c,%,$(wildcard tests/cuda/test_*.c))
EMU_TEST  := $(CUDA_TEST:%=$(BUILD)/tests/kernels/%)
GPU_TEST  := $(CUDA_TEST:%=$(BUILD)/tests/gpu/%)
# The bench of a GPU; emulated, too, so that it is known to run.
GPU_BENCH := $(BUILD)/tests/gpu/bench_gpu
EMU_BENCH := $(BUILD)/tests/cuda/bench_gpu
EMULATED  := $(if $(SAN)$(FUZZER),,$(BUILD)/tests/cuda/libfastdecode-cuda.so $(EMU_TEST) $(EMU_BENCH))
BENCH    := $(patsubst tests/bench/%.c,$(BUILD)/tests/bench/%,$(wildcard tests/bench/bench_*.c))

# --- rooms -------------------------------------------------------------------------------------------------------------
# $(call room,ROOM,ROOMS IT USES,LIBRARIES IT USES): it includes and calls nothing else, and only rooms further up may be named, so there is no
# circle. tests/lint/graph.py holds the code against this table. A program is linked with the rooms that it reaches and their libraries.
SOURCES := # of all rooms
ROOMS   := # the last one first, as a linker wants them
define room
OBJECTS := $$(patsubst %.c,$(BUILD)/obj/%.o,$$(filter-out %/main.c kernels/cuda/% $(OTHERS),$$(wildcard $1/*.c)))$$(if $$(filter proto,$1), $(PB_SRC:$(BUILD)/gen/%.c=$(BUILD)/obj/gen/%.o))$$(if $$(filter services/gateway/serve,$1), $(BUILD)/obj/gen/page_files.o $(BUILD)/obj/gen/openapi_file.o)
SOURCES += $$(OBJECTS)
REACHED_$1 := $1 $$(sort $$(foreach r,$2,$$(REACHED_$$r)))
LIBRARIES_$1 := $3 $$(foreach r,$2,$$(LIBRARIES_$$r))
ROOMS := $1 $$(ROOMS)
ifneq ($$(strip $$(OBJECTS)),)
ARCHIVE_$1 := $(BUILD)/lib/$(subst /,-,$1).a
$$(ARCHIVE_$1): $$(OBJECTS)
endif
endef
$(eval $(call room,proto,,protobuf-c))
$(eval $(call room,common/base,,))
$(eval $(call room,common/trace,proto common/base,curl))
$(eval $(call room,common/service,common/base,seccomp))
$(eval $(call room,common/disk,common/base,uring))
$(eval $(call room,common/kv,common/base,))
$(eval $(call room,kernels/simd,common/base,))
$(eval $(call room,kernels/quant,common/base kernels/simd,))
$(eval $(call room,kernels/gemm,common/base kernels/simd kernels/quant,))
$(eval $(call room,kernels/attention,common/base common/kv kernels/simd,))
$(eval $(call room,kernels/norm_rope,common/base kernels/simd,))
$(eval $(call room,kernels/dispatch,kernels/simd kernels/gemm kernels/norm_rope,))
$(eval $(call room,kernels/kv,common/base common/kv kernels/attention kernels/dispatch,))
$(eval $(call room,common/json,common/base,jansson))
$(eval $(call room,common/tokenizer,common/base,pcre2-8 utf8proc))
$(eval $(call room,common/model/gguf,common/base kernels/quant,))
$(eval $(call room,common/model/hf,common/base kernels/quant common/json common/model/gguf,jansson))
$(eval $(call room,common/model,common/base kernels/quant kernels/norm_rope common/tokenizer common/model/gguf common/model/hf,))
$(eval $(call room,common/sampler,common/base,))
$(eval $(call room,kernels/backend,common/base common/disk common/kv kernels/quant kernels/gemm kernels/attention kernels/norm_rope \
    kernels/dispatch kernels/kv common/model/gguf common/model common/sampler,openblas))
$(eval $(call room,kernels/cuda,common/base common/disk common/kv kernels/quant kernels/norm_rope kernels/dispatch common/model/gguf common/model \
    common/sampler kernels/backend,))
$(eval $(call room,common/sched,common/base,))
$(eval $(call room,common/plan,common/base common/kv kernels/quant common/model common/sched,Clp jansson))
$(eval $(call room,common/sim,common/base common/sched common/plan,))
$(eval $(call room,common/rpc,proto common/base,nng protobuf-c sodium ssl crypto))
$(eval $(call room,common/mesh,proto common/base common/kv common/sampler common/rpc,))
$(eval $(call room,common/api,common/base common/json,jansson sodium))
$(eval $(call room,common/grammar,common/base,))
$(eval $(call room,common/schema,common/base common/json common/grammar,jansson))
$(eval $(call room,services/gateway/jinja,common/base common/json,jansson utf8proc))
$(eval $(call room,services/gateway/answer,common/base common/json common/grammar common/schema,jansson))
$(eval $(call room,services/gateway/http,common/base common/trace common/tokenizer common/api,microhttpd gnutls sodium))
$(eval $(call room,services/gateway/api/schema,proto common/base common/json services/gateway/jinja services/gateway/http,jansson))
$(eval $(call room,services/gateway/api/dialects,common/base common/json services/gateway/http services/gateway/api/schema,jansson))
$(eval $(call room,services/gateway/text,common/base common/json common/tokenizer common/model/gguf common/model common/grammar common/schema \
    services/gateway/jinja services/gateway/answer services/gateway/http services/gateway/api/schema,jansson))
$(eval $(call room,services/gateway/mesh,proto common/base common/kv common/rpc common/mesh services/gateway/http,))
$(eval $(call room,services/gateway/batch,common/base common/json common/api services/gateway/http services/gateway/api/schema,sqlite3 sodium))
$(eval $(call room,services/gateway/request,common/base common/trace common/mesh common/schema services/gateway/answer services/gateway/http \
    services/gateway/api/schema services/gateway/api/dialects services/gateway/text services/gateway/mesh,jansson))
$(eval $(call room,services/gateway/serve,common/base common/trace common/json common/rpc services/gateway/answer services/gateway/http \
    services/gateway/api/schema services/gateway/api/dialects services/gateway/text services/gateway/mesh services/gateway/batch \
    services/gateway/request,jansson))
$(eval $(call room,services/gateway,common/base common/trace common/service common/model common/rpc services/gateway/serve,))
$(eval $(call room,services/scheduler,proto common/base common/trace common/service common/kv kernels/kv common/sched common/plan common/rpc \
    common/mesh,sodium))
$(eval $(call room,services/kv-worker,proto common/base common/trace common/service common/kv kernels/dispatch kernels/kv common/rpc common/mesh,))
$(eval $(call room,services/s-part/step,proto common/base common/trace common/kv common/tokenizer common/model/gguf common/model common/sampler \
    kernels/backend common/sched common/rpc common/mesh common/grammar,))
$(eval $(call room,services/s-part/engine,proto common/base common/trace common/kv kernels/kv common/model kernels/backend common/sched common/rpc \
    common/mesh services/s-part/step,))
$(eval $(call room,services/s-part,proto common/base common/trace common/service common/disk common/kv kernels/dispatch kernels/kv common/tokenizer \
    common/model common/sampler kernels/backend common/sched common/plan common/rpc common/mesh services/s-part/step services/s-part/engine,))
$(eval $(call room,services/fastdecode/keys,common/base common/rpc common/api,sodium ssl crypto))
$(eval $(call room,services/fastdecode/client,common/base common/json common/rpc common/api,jansson curl))
$(eval $(call room,services/fastdecode/capacity,common/base common/json common/sim services/fastdecode/client,jansson))
$(eval $(call room,services/fastdecode/plan,proto common/base common/kv kernels/quant kernels/dispatch kernels/kv common/model/gguf \
    common/model kernels/backend common/sched common/plan common/sim common/rpc services/fastdecode/capacity,jansson))
$(eval $(call room,services/fastdecode/model,common/base common/kv kernels/simd kernels/quant kernels/dispatch kernels/kv \
    common/tokenizer common/model/gguf common/model common/sampler kernels/backend common/sched,jansson utf8proc))
$(eval $(call room,services/fastdecode/up,common/base common/trace common/service common/disk common/kv common/model common/sched common/plan \
    common/rpc services/fastdecode/client,))
$(eval $(call room,services/fastdecode,common/base services/fastdecode/keys services/fastdecode/client services/fastdecode/capacity \
    services/fastdecode/plan services/fastdecode/model services/fastdecode/up,))
archives_of = $(foreach r,$(ROOMS),$(if $(filter $r,$(REACHED_$1)),$(ARCHIVE_$r)))
LIB  := $(foreach r,$(ROOMS),$(ARCHIVE_$r))
LIBS := $(call libraries,$(foreach r,$(ROOMS),$(LIBRARIES_$r)))

# What the product keeps on disk, over a simulated disk that fails (tests/sim/disk).
SIM_DISK := $(BUILD)/tests/sim/disk
SIM_DISK_OBJ := $(patsubst tests/sim/disk/%.c,$(BUILD)/obj/tests/sim/disk/%.o,$(wildcard tests/sim/disk/*.c)) $(BUILD)/obj/tests/sim/strings.o
SIM_DISK_WRAP := malloc calloc realloc aligned_alloc free strdup strndup asprintf open close read write pread pwrite lseek fsync fdatasync ftruncate \
    fallocate posix_fallocate posix_fadvise rename unlink unlinkat mkdir stat fstat fstatat access flock fcntl opendir readdir closedir dirfd dprintf \
    getpid clock_gettime getrandom randombytes_buf pthread_create pthread_join pthread_cond_timedwait log_write work_pool_start exchange_header \
    exchange_query exchange_respond_file batch_store_open batch_job_write
SIM_DISK_LIB := $(foreach r,$(ROOMS),$(if $(filter $r,$(REACHED_services/gateway/batch) $(REACHED_kernels/backend)),$(ARCHIVE_$r)))

.DEFAULT_GOAL := help
.SECONDARY:
.DELETE_ON_ERROR:

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 24
	@echo; echo "  settings: MODEL=file.gguf BUILD=dir SAN=address|thread V=1"

all: $(BINS) ## build the programs into build/bin

# --- rules -------------------------------------------------------------------------------------------------------------
# Rebuild everything when flags change.
$(BUILD)/flags: FORCE
	$(Q)mkdir -p $(@D); printf '%s\n' '$(CC) $(ALLFLAGS)' | cmp -s - $@ || printf '%s\n' '$(CC) $(ALLFLAGS)' >$@
FORCE:

$(BUILD)/gen/%.pb-c.c $(BUILD)/gen/%.pb-c.h: proto/%.proto
	@mkdir -p $(BUILD)/gen
	$(Q)protoc-c --proto_path=proto --c_out=$(BUILD)/gen $<
$(PB_SRC): | $(BUILD)/flags

# The web pages are part of the gateway: arrays, of files that need no other step.
$(BUILD)/gen/page_files.c: services/gateway/serve/pages/embed.py $(PAGES)
	@mkdir -p $(@D)
	$(Q)$(PYTHON) $< $@ $(PAGES)
$(BUILD)/gen/openapi_file.c: services/gateway/serve/openapi/embed.py services/gateway/serve/openapi/openapi.json
	@mkdir -p $(@D)
	$(Q)$(PYTHON) $^ $@

%_avx2.o:   ISA = -mavx2 -mfma -mf16c
%_avxvnni.o: ISA = -mavx2 -mavxvnni -mfma -mf16c
%_avx512.o: ISA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
%_vnni.o:   ISA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c
# gcc's scheduling before it allocates registers computes all of a block's weights first, and then lacks registers for its sums.
%_neon.o:    ISA = $(if $(findstring clang,$(CC)),,-fno-schedule-insns)
%_dotprod.o: ISA = -march=armv8.2-a+dotprod $(if $(findstring clang,$(CC)),,-fno-schedule-insns)
%_i8mm.o:    ISA = -march=armv8.2-a+dotprod+i8mm $(if $(findstring clang,$(CC)),,-fno-schedule-insns)
LANES_OBJ := %_avx2.o %_avxvnni.o %_avx512.o %_vnni.o %_neon.o %_dotprod.o %_i8mm.o
# Templates with many instances: full debug information would take as long as compiling them.
$(LANES_OBJ): ISA += -g1
$(BUILD)/obj/kernels/%.o: CFLAGS += $(if $(filter address,$(SAN))$(FUZZER),,-O3)
# The tested code is in the library: its tests take a third less time to compile so, and run as fast.
$(BUILD)/obj/tests/unit/%.o $(BUILD)/obj/tests/integration/%.o: ISA += -O1
ifeq ($(SAN),thread) # inner loops work on what their caller gives them: seen there, and a hundred times faster unseen here
$(LANES_OBJ): ISA += -fno-sanitize=thread
endif
ifeq ($(SAN),address) # each register block is code of its own: with all checks one file takes ten minutes to compile
$(LANES_OBJ): ISA += -fno-sanitize=undefined
endif
ifdef FUZZER # no parser: plain objects compile ten times faster
$(LANES_OBJ): ISA += -fno-sanitize=all
endif

$(BUILD)/obj/gen/%.o: $(BUILD)/gen/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(SANFLAGS) -c $< -o $@
$(BUILD)/obj/%.o: %.c $(BUILD)/flags | $(PB_SRC)
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC $<")
	$(Q)$(CC) $(ALLFLAGS) $(ISA) -c $< -o $@

# A file that is gone leaves its archive, too.
$(BUILD)/objects: FORCE
	$(Q)mkdir -p $(@D); printf '%s\n' $(SOURCES) | cmp -s - $@ || printf '%s\n' $(SOURCES) >$@
$(LIB): $(BUILD)/objects
	@mkdir -p $(@D)
	$(Q)rm -f $@; $(AR) rcs $@ $(filter %.o,$^)
define program
$(BUILD)/bin/$1: $(BUILD)/obj/services/$1/main.o $(call archives_of,services/$1)
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(ALLFLAGS) $$^ $(call libraries,$(LIBRARIES_services/$1)) $$(EXPORT) -o $$@
endef
$(foreach b,$(notdir $(BINS)),$(eval $(call program,$b)))
$(BUILD)/bin/s-part $(BUILD)/bin/fastdecode $(BUILD)/tests/slow/s-part: EXPORT = -Wl,--export-dynamic # what the shared object of a device uses of it

# --- CUDA ----------------------------------------------------------------------------------------------------------------
cuda: $(if $(NVCC),$(CUDA_LIB),no-nvcc) ## build the CUDA backend, where nvcc is (CUDA_HOME=DIR, CUDA_ARCH="80 90")
no-nvcc:
	@echo "  no nvcc in $(CUDA_HOME)/bin: the CUDA backend is not built (CUDA_HOME=DIR says where the toolkit is)"
$(BUILD)/flags-cuda: FORCE
	$(Q)mkdir -p $(@D); printf '%s\n' '$(NVCC) $(CUDA_ARCH)' | cmp -s - $@ || printf '%s\n' '$(NVCC) $(CUDA_ARCH)' >$@
$(BUILD)/obj/cuda/%.cu.o: %.cu $(wildcard kernels/cuda/*.h kernels/cuda/*.cuh) $(BUILD)/flags-cuda
	@mkdir -p $(@D)
	$(if $(V),,@echo "  NVCC $<")
	$(Q)$(NVCC) -std=c++17 -O3 -lineinfo -I. -Xcompiler -fPIC,-fvisibility=hidden $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a)$(,)code=sm_$(a)) -gencode arch=compute_$(lastword $(CUDA_ARCH))$(,)code=compute_$(lastword $(CUDA_ARCH)) -c $< -o $@
$(BUILD)/obj/cuda/%.c.o: %.c $(BUILD)/flags | $(PB_SRC)
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC $<")
	$(Q)$(CC) $(ALLFLAGS) -fPIC -fvisibility=hidden -isystem $(CUDA_HOME)/include -c $< -o $@
$(CUDA_LIB): $(patsubst %,$(BUILD)/obj/cuda/%.o,$(CUDA_SRC))
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -o $@ $^ -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -lstdc++ -lrt -lpthread -ldl -lm

$(BUILD)/tests/gpu/%: $(BUILD)/obj/cuda/tests/cuda/%.c.o $(patsubst %,$(BUILD)/obj/cuda/%.o,$(CUDA_SRC)) $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $^ -L$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -lstdc++ -lcmocka $(LIBS) -lrt -Wl,-rpath,$(CUDA_HOME)/lib64 -o $@

$(GPU_BENCH): $(patsubst %,$(BUILD)/obj/cuda/%.o,tests/bench/gpu/bench_gpu.c tests/bench/gpu/gemm_ceiling.c $(CUDA_SRC)) $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $^ -L$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -lstdc++ $(LIBS) -lrt -Wl,-rpath,$(CUDA_HOME)/lib64 -o $@

$(BUILD)/obj/emulated/%.c.o: %.c $(BUILD)/flags | $(PB_SRC)
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC (emulated) $<")
	$(Q)$(CC) $(ALLFLAGS) -fPIC -fvisibility=hidden -Itests/cuda/include -c $< -o $@
$(BUILD)/obj/emulated/%.o: % $(BUILD)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CXX (emulated) $<")
	$(Q)$(CXX) -x c++ -std=c++17 -O2 -g -MMD -MP -ffp-contract=off -fPIC -fvisibility=hidden -DFD_EMULATE -Wall -Wextra -Wno-unknown-pragmas $(WERROR) $(if $(filter %.cu,$<),$(EMU_SAN)) -I. -Itests/cuda/include -c $< -o $@
$(BUILD)/tests/cuda/libfastdecode-cuda.so: $(EMU_LIB)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(EMU_SAN) -shared -o $@ $^ -lm
$(EMU_TEST): $(BUILD)/tests/kernels/%: $(BUILD)/obj/emulated/tests/cuda/%.c.o $(EMU_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(EMU_SAN) $^ -lcmocka $(LIBS) -o $@

$(EMU_BENCH): $(patsubst %,$(BUILD)/obj/emulated/%.o,tests/bench/gpu/bench_gpu.c tests/bench/gpu/gemm_ceiling_emulated.c) $(EMU_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(EMU_SAN) $^ $(LIBS) -o $@

# Ones that tests can slow down, or tell to move sequences.
$(BUILD)/tests/slow/scheduler: $(BUILD)/obj/services/scheduler/main.o $(BUILD)/obj/tests/e2e/moving_scheduler.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLFLAGS) -Wl,--wrap=scheduler_tick $^ $(LIBS) -o $@
$(BUILD)/tests/slow/%: $(BUILD)/obj/services/%/main.o $(BUILD)/obj/tests/e2e/slow_worker.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLFLAGS) -Wl,--wrap=kv_store_export_page,--wrap=kv_batch_open,--wrap=kv_batch_attend,--wrap=kv_batch_can_join $^ $(LIBS) $(EXPORT) -o $@
$(BUILD)/obj/sim/frame.o: common/rpc/frame.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLFLAGS) -DFRAME_POOL_BYTES=0 -c $< -o $@
$(SIM): $(SIM_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLFLAGS) $(SIM_WRAP:%=-Wl,--wrap=%) $^ $(LIBS) -o $@
$(SIM_DISK): $(SIM_DISK_OBJ) $(SIM_DISK_LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLFLAGS) $(SIM_DISK_WRAP:%=-Wl,--wrap=%) $^ $(LIBS) -o $@
$(BUILD)/tests/bench/%: $(BUILD)/obj/tests/bench/%.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLFLAGS) $< $(LIB) $(LIBS) -o $@
$(BUILD)/tests/fuzz-linked/%: $(BUILD)/obj/tests/fuzz/%.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLFLAGS) -Wl,--defsym=main=LLVMFuzzerTestOneInput $< $(LIB) $(LIBS) -o $@
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLFLAGS) $< $(LIB) -lcmocka $(LIBS) -o $@

-include $(shell find $(BUILD)/obj $(BUILD)/tests -type f -name '*.d' 2>/dev/null)

$(BUILD)/fuzz/ready: $(filter-out gen/%,$(SOURCES:$(BUILD)/obj/%.o=%.c)) | $(PB_SRC)
	$(Q)$(MAKE) --no-print-directory BUILD=$(BUILD)/fuzz CC=$(CLANG) WERROR= FUZZER=1 libs && touch $@
$(BUILD)/tests/fuzz/%: tests/fuzz/%.c $(BUILD)/fuzz/ready
	@mkdir -p $(@D)
	$(if $(V),,@echo "  FUZZ $<")
	$(Q)$(CLANG) $(BASE) -O1 -g -I$(BUILD)/fuzz/gen -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined $< $(LIB:$(BUILD)/%=$(BUILD)/fuzz/%) $(LIBS) -o $@

# As many compilers as there are CPUs, unless -j was given.
PARALLEL = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

# --- run it --------------------------------------------------------------------------------------------------------------
# The default model's file says nothing of sampling. Counted with these settings: of 192 answers with which they were chosen and 72 others none ended in
# a loop (the last 60 tokens one unit of at most 30, again and again), 256 ended by themselves, 42 of 42 knew the capital of France. With the authors'
# temperature 0.2 and top_p 0.9 (huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct) 23 of 120 looped and 24 of 36 knew it. A repetition penalty would
# count the prompt, too, and have code call functions that are not there.
SUITS = $(if $(filter %SmolLM2-135M-Instruct.Q4_1.gguf,$(MODEL)),--sampling temperature=0.2$(,)top_p=0.3$(,)frequency_penalty=0.5)

serve: packages-build ## install what is missing, build, get the default model, start the mesh
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) all model
	$(Q)exec $(BUILD)/bin/fastdecode up --model $(MODEL) $(SUITS) $(ARGS)

model: ## get the default model into models/ (checked by size and SHA-256)
	$(Q)$(if $(filter models/SmolLM2-135M-Instruct.Q4_1.gguf,$(MODEL)),deploy/get-model.sh $(MODEL),test -e $(MODEL) || { echo "no such file: $(MODEL)"; exit 1; })

# Services lie beside `fastdecode`, which starts them, and are called fastdecode-SERVICE where everybody looks.
PREFIX  ?= /usr/local
INSTALL  = install -D -m
HOST_LIB = $(DESTDIR)$(PREFIX)/lib/fastdecode
install: all ## install programs, man pages, completions, units of systemd (PREFIX=/usr/local, DESTDIR=)
	$(Q)$(MAKE) --no-print-directory install-built

# Installs what is there already: builds nothing.
install-built: manuals
	$(Q)for p in $(notdir $(BINS)); do $(INSTALL) 755 $(BUILD)/bin/$$p $(HOST_LIB)/bin/$$p; done
	$(Q)if [ -e $(CUDA_LIB) ]; then $(INSTALL) 644 $(CUDA_LIB) $(HOST_LIB)/bin/$(notdir $(CUDA_LIB)); fi
	$(Q)install -d $(DESTDIR)$(PREFIX)/bin && for p in $(notdir $(BINS)); do \
	    ln -sf ../lib/fastdecode/bin/$$p $(DESTDIR)$(PREFIX)/bin/fastdecode$$([ $$p = fastdecode ] || echo -$$p); done
	$(Q)for f in deploy/hardware/*.conf deploy/shapes/*.json; do $(INSTALL) 644 $$f $(HOST_LIB)/share/fastdecode/$${f#deploy/}; done
	$(Q)for f in $(BUILD)/host/man/*.1; do $(INSTALL) 644 $$f $(DESTDIR)$(PREFIX)/share/man/man1/$${f##*/}; done
	$(Q)$(INSTALL) 644 $(BUILD)/host/completions/fastdecode.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/fastdecode
	$(Q)$(INSTALL) 644 $(BUILD)/host/completions/_fastdecode $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_fastdecode
	$(Q)$(INSTALL) 644 $(BUILD)/host/completions/fastdecode.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/fastdecode.fish
	$(Q)for f in deploy/host/systemd/*; do sed 's|@PREFIX@|$(PREFIX)|' $$f | $(INSTALL) 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/$${f##*/}; done
	$(Q)$(INSTALL) 644 deploy/host/sysusers/fastdecode.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/fastdecode.conf
	$(Q)for f in deploy/host/config/*; do test -e $(DESTDIR)/etc/fastdecode/$${f##*/} || $(INSTALL) 644 $$f $(DESTDIR)/etc/fastdecode/$${f##*/}; done

manuals: # of the programs that are there
	$(Q)$(PYTHON) deploy/host/manuals.py $(BUILD) $(BUILD)/host/man
	$(Q)$(PYTHON) deploy/host/completions.py $(BUILD) $(BUILD)/host/completions

packages-build packages-cuda packages-test packages-deploy:
	$(Q)deploy/install-packages.sh $(@:packages-%=%)

# --- check it ------------------------------------------------------------------------------------------------------------
check: packages-build packages-test ## lint, unit, kernel, integration and end-to-end tests, and failure schedules (under 10 minutes on two cores)
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) programs venv model CUDA_ARCH='$(firstword $(CUDA_ARCH))'
	$(Q)tests/run.py --build $(BUILD) --venv $(VENV) lint unit kernels integration sim e2e

check-gpu: packages-build packages-test ## the CUDA kernels beside plain loops, on this machine's GPU
	$(Q)$(MAKE) --no-print-directory cuda $(if $(NVCC),$(GPU_TEST))
	$(Q)$(if $(NVCC),failed=; for t in $(GPU_TEST); do $$t || failed=1; done; test -z "$$failed",:)

check-full: packages-build packages-test ## the long checks: sanitizers, fuzzing, every setting, deployment (the gate runs a sample of them)
	$(Q)tests/check_full.sh

check-upgrade: packages-build packages-test ## a mesh of another revision is upgraded to this one under 64 streams (FROM=REVISION)
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) all venv model
	$(Q)tests/upgrade.sh $(FROM)

sim: $(SIM) ## the mesh in one process on a virtual clock, under failure schedules from new seeds (HOURS=8: for so long)
	$(Q)$(SIM) --from $$(date +%s)000 $(if $(HOURS),--hours $(HOURS) --keep-going,--seeds 10000) $(ARGS)

sysroot-arm64: ## Debian's libraries for arm64 in build/sysroot-arm64: make CC=aarch64-linux-gnu-gcc SYSROOT=build/sysroot-arm64 BUILD=build/arm64 all
	$(Q)tests/arm/sysroot.sh $(BUILD)/sysroot-arm64

check-arm: packages-build packages-test ## AArch64's kernels and a mesh under qemu, beside this machine's: the same bytes (skipped where there are no packages)
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) all venv model
	$(Q)tests/arm/check_arm.sh || [ $$? = 77 ]

mutants: packages-build packages-test ## see which of some thirty faults, put into a copy of the code one by one, the tests catch (minutes; ARGS=NAME: one)
	$(Q)$(MAKE) --no-print-directory $(PARALLEL) programs venv model
	$(Q)tests/mutants.py --build $(BUILD) --venv $(VENV) $(ARGS)

images: ## build the images of all services with docker or podman (ARGS="kv-worker tools"; docker/build.sh lists the settings)
	$(Q)docker/build.sh $(ARGS)

check-deploy: packages-deploy model ## build the images, start them by compose and as pods, change them under load (root; no registry needed)
	$(Q)tests/deploy/check_deploy.sh

programs: $(BINS) $(UNIT) $(if $(filter thread,$(SAN)),,$(KERNEL) $(SIM) $(SIM_DISK)) $(INTEG) $(SLOW) $(TOOLS) $(HASHES) $(EMULATED) $(if $(SAN)$(FUZZER),,$(BENCH) $(FUZZ_LINKED) cuda) ## build the programs, all tests and benches
libs: $(LIB)
fuzz: $(FUZZ) ## build the fuzz targets (clang's libFuzzer)

venv: $(VENV)/ready
$(VENV)/ready: tests/requirements.txt
	$(Q)echo "  VENV $(VENV)"; $(PYTHON) -m venv $(VENV) && $(VENV)/bin/pip install -q --disable-pip-version-check --require-hashes -r $< && $(VENV)/bin/python tests/e2e/schema_suite.py >/dev/null && touch $@

pins: ## write the newest packages of the requirements*.in in tests and tests/deploy, with hashes, into their .txt
	$(Q)$(PYTHON) -m venv $(BUILD)/uv && $(BUILD)/uv/bin/pip install -q --disable-pip-version-check uv
	$(Q)for f in $(basename $(wildcard tests/requirements*.in tests/deploy/requirements*.in)); do $(BUILD)/uv/bin/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	    --custom-compile-command "make pins" $$f.in -o $$f.txt; done

# Packages that are too large for every run of the tests: those that use them are skipped without.
venv-full: $(VENV)/ready-full ## the packages of the tests that only `make check-full` runs
$(VENV)/ready-full: tests/requirements-full.txt $(VENV)/ready
	$(Q)echo "  VENV $(VENV), full"; $(VENV)/bin/pip install -q --disable-pip-version-check -r $< && touch $@

# Load generators and evaluators, an environment each beside $(VENV): their dependencies exclude each other's.
LOAD_TOOLS := guidellm aiperf lm-eval
venv-load: $(LOAD_TOOLS:%=$(VENV)-%/ready) ## guidellm, aiperf and lm-eval (3 GB of disk), for their tests
$(VENV)-%/ready: tests/requirements-%.txt
	$(Q)echo "  VENV $(VENV)-$*"; $(PYTHON) -m venv $(VENV)-$* && $(VENV)-$*/bin/pip install -q --disable-pip-version-check -r $< && touch $@

venv-clients: $(VENV)-clients/ready ## client libraries and agent frameworks (530 MB of disk), for their tests

format: ## lay out all C as .clang-format says
	$(Q)git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' ':!*lanes.h' | xargs clang-format -i
lint: ## the lint checks alone
	$(Q)tests/run.py --build $(BUILD) lint
unit: $(UNIT) ## build the unit tests (T=name runs one)
	$(if $(T),$(BUILD)/tests/unit/$(T))
kernel: $(KERNEL) ## build the kernel tests (T=name runs one)
	$(if $(T),$(BUILD)/tests/kernels/$(T))
integration: $(INTEG) ## build the integration tests (T=name runs one)
	$(if $(T),$(BUILD)/tests/integration/$(T))
# --- measure it ----------------------------------------------------------------------------------------------------------
bench: packages-build ## every figure as one table, and build/bench.json (two hours, more with more peers; ONLY=part,part; tests/bench/peer.sh first)
	$(Q)$(MAKE) --no-print-directory bench-programs all venv model
	$(Q)FD_TEST_MODEL=$(abspath $(MODEL)) $(VENV)/bin/python tests/bench/bench.py --build $(BUILD) $(if $(ONLY),--only $(ONLY))
bench-kernels: ## the kernels' figures alone (under 3 minutes)
	$(Q)$(MAKE) --no-print-directory bench ONLY=kernels
bench-gpu: ## the GPU's figures beside its ceilings, and build/bench-gpu.json (ONLY=part,part; ends at once without a GPU)
	$(Q)tests/bench/gpu/bench_gpu.sh $(BUILD) $(if $(NVCC),nvcc,-) $(PYTHON) $(if $(ONLY),--only $(ONLY)) $(ARGS)
bench-gpu-programs: $(if $(NVCC),cuda $(GPU_BENCH),no-nvcc) all $(BUILD)/tests/bench/bench_machine ## build what bench-gpu runs
bench-programs: $(BENCH) $(SLOW) ## build the benches into build/tests/bench

clean: ## remove what was built
	rm -rf build build-address build-thread

.PHONY: help all pins sim install install-built manuals images check-upgrade serve model packages-build packages-cuda packages-test packages-deploy check venv-full venv-load venv-clients check-full check-arm sysroot-arm64 mutants check-deploy programs fuzz venv format lint unit \
        kernel integration bench bench-kernels bench-programs bench-gpu bench-gpu-programs clean FORCE
