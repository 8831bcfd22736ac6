// tessera_bench_comm_mpi PREFIX: the same commands over MPI, started by mpirun.
#include <mpi.h>

#include "commands.hpp"

namespace {

void run(int rank, int size, const tessera::bench::Call& call) {
  const int count = static_cast<int>(call.bytes / sizeof(float));
  const int share = count / size;
  float* in = call.in.data();
  float* out = call.out.data();
  if (call.operation == "all_reduce") {
    MPI_Allreduce(MPI_IN_PLACE, in, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (call.operation == "reduce_scatter") {
    MPI_Reduce_scatter_block(in, out, share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (call.operation == "all_gather") {
    MPI_Allgather(in, share, MPI_FLOAT, out, share, MPI_FLOAT, MPI_COMM_WORLD);
  } else if (call.operation == "broadcast") {
    MPI_Bcast(in, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  } else if (call.operation == "all_to_all") {
    MPI_Alltoall(in, share, MPI_FLOAT, out, share, MPI_FLOAT, MPI_COMM_WORLD);
  } else if (rank == 0) {
    MPI_Send(in, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(in, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else if (rank == 1) {
    MPI_Recv(in, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(in, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  MPI_Init(&argument_count, &arguments);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  tessera::bench::serve(
      rank, arguments[1], [&](const tessera::bench::Call& call) { run(rank, size, call); }, [] { MPI_Barrier(MPI_COMM_WORLD); });
  MPI_Finalize();
  return 0;
}
