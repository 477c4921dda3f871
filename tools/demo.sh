#!/bin/bash
# Demo: trains a small BLIP-2 on pictures it draws itself, or a small LLaMA on instructions, plots the loss, saves the model,
# and captions pictures that it has not seen, or answers a prompt.
#
#   tools/demo.sh [CUDA=0|1] [MODEL=blip2|llama]       (make demo calls it)
#
# Uses up to four GPUs where there are some, else four CPU ranks (two for LLaMA): then it builds without CUDA, whose kernels
# take minutes to compile.

set -e
cd "$(dirname "$0")/.."
cuda=0
model=blip2
for argument in "$@"; do
  case "$argument" in
    CUDA=[01]) cuda=${argument#CUDA=} ;;
    MODEL=blip2 | MODEL=llama) model=${argument#MODEL=} ;;
    *) echo "demo: unknown argument $argument; usage: tools/demo.sh [CUDA=0|1] [MODEL=blip2|llama]" >&2; exit 2 ;;
  esac
done

python=$(tools/setup.sh --python)
if [ "$model" = blip2 ]; then
  demo=demo run=demo most_ranks=4 unseen=demo/unseen/data
  # Five times while it learns it says what is on other pictures, and is scored.
  scored=(data.val_path=$unseen train.val_check_interval=120 evaluate.samples=24 generate.max_new_tokens=32)
  if [ ! -d demo/model ] || [ ! -d demo/data ]; then
    echo "== drawing the pictures (demo/)"
    "$python" tools/make_demo.py --out demo --samples 384 --seed 0
  fi
  [ -d $unseen ] || "$python" tools/make_demo.py --out demo/unseen --samples 24 --seed 1 > /dev/null
else
  demo=demo-llama run=demo-llama most_ranks=2 unseen=demo-llama/unseen/data/instructions.jsonl
  scored=(evaluate.samples=50 generate.max_new_tokens=32)
  if [ ! -d demo-llama/model ] || [ ! -d demo-llama/data ]; then
    echo "== writing the instructions (demo-llama/)"
    "$python" tools/make_text_demo.py --out demo-llama
  fi
  [ -d demo-llama/unseen/data ] || "$python" tools/make_text_demo.py --out demo-llama/unseen --samples 100 --seed 1 > /dev/null
fi

gpus=0
if [ "$cuda" = 1 ]; then gpus=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU' || true); fi
if [ "$cuda" = 1 ] && [ "$gpus" = 0 ]; then
  echo "== this machine has nvcc but no GPU: building for the CPU, and training on it (./blipft is then that program)"
  cuda=0
fi
echo "== building"
make -s -j"$(nproc)" CUDA="$cuda" blipft

ranks=$most_ranks
[ "$gpus" -ge 1 ] && ranks=$((gpus < 4 ? gpus : 4))

options=(-np "$ranks" --oversubscribe --bind-to none)
[ "$(id -u)" = 0 ] && options+=(--allow-run-as-root)
# Containers often forbid reading another process's memory; Open MPI then warns on every start.
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}

# Without it threads and ranks of CPUs spin while they wait, at the cost of whatever else needs the cores.
[ "$gpus" -ge 1 ] || export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

echo "== training on $ranks $([ "$gpus" -ge 1 ] && echo "GPU(s)" || echo "CPU ranks")"
command=(mpirun "${options[@]}" ./blipft inputs/$demo.yaml parallel.devices="$ranks" output.overwrite=true
         "${scored[@]}")
"${command[@]}"

"$python" tools/plot_loss.py runs/$run

if [ "$model" = blip2 ]; then
  echo "== captions of pictures that it has not seen"
  ./blipft --evaluate inputs/demo.yaml generate.path=$unseen
else
  echo "== answers to instructions that it has not seen, and to a prompt"
  ./blipft --evaluate inputs/demo-llama.yaml generate.path=$unseen
  prompt="What is the first letter of rabbit?"
  echo "$prompt"
  ./blipft --generate inputs/demo-llama.yaml --prompt "$prompt"
fi
echo
echo "trace        runs/$run/trace.rank0000.h5 (one file a rank; h5dump, h5py and pandas read it)"
echo "loss plot    runs/$run/loss.png"
echo "saved model  runs/$run/model (transformers' from_pretrained reads it)"
echo "once more    ${OMP_WAIT_POLICY:+OMP_WAIT_POLICY=$OMP_WAIT_POLICY }OMPI_MCA_btl_vader_single_copy_mechanism=$OMPI_MCA_btl_vader_single_copy_mechanism ${command[*]}"
