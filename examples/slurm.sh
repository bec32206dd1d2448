#!/bin/bash
# tiss on two nodes of four GPUs each. Submit it with:  sbatch examples/slurm.sh
#SBATCH --job-name=tiss-voc-15-1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1        # one launcher per node; it starts a process for every GPU
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120          # two minutes before the end; the last checkpoint is whole at any moment
#SBATCH --requeue                  # a job that is started again resumes: see --resume below
#SBATCH --open-mode=append

set -euo pipefail

: "${VOC:?set VOC to the folder that holds the VOCdevkit, on a file system that all nodes see}"
out="${OUT:-runs/voc-15-1-tiss}"   # on such a file system too: the first process writes it, all read it
export OMP_NUM_THREADS=4

first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
resume=()
if [ -e "$out/config.yaml" ]; then resume=(--resume); fi

srun --kill-on-bad-exit=1 \
  torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 4 \
    --rdzv-backend c10d --rdzv-endpoint "$first_node:29500" --rdzv-id "$SLURM_JOB_ID" \
    -m tiss run --data voc --data.root "$VOC" --task 15-1 --setup overlapped --method tiss \
      --train.batch 24 --train.save_every 200 --out "$out" "${resume[@]}"
