#!/bin/sh
# sbatch slurm.sh: one process on each of two nodes. Submitted again, it resumes.
#SBATCH --job-name=tacit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00

# JAX finds process 0 and the others from Slurm. The folder is on a disk that all nodes have, closed to others.
umask 077
srun --kill-on-bad-exit=1 python script.py "$HOME/study"
