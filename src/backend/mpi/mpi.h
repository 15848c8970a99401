/* mpi.h - kernels of collectives between chips that are ranks of an MPI job. A call needs
 * rf_call.link. */
#ifndef RF_MPI_H
#define RF_MPI_H

#include "backend/kernel.h"
#include "backend/mpi/flight.h"

extern const rf_kernel RF_MPI_COLLECTIVES[];

#endif
