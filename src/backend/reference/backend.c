/* backend.c - the reference backend: one kernel for every op, on the host. */
#include "backend/host.h"
#include "backend/mpi/mpi.h"
#include "backend/mpi/pipe.h"
#include "backend/reference/reference.h"

static const rf_kernel *const TABLES[] = {RF_MPI_COLLECTIVES, RF_MPI_FLIGHTS, RF_MPI_TRANSFERS,
                                          RF_REFERENCE_KERNELS, NULL};
static const rf_device_type DEVICE = {RF_HOST_DEVICE};

const rf_backend RF_BACKEND_REFERENCE = {
    .name = "reference", .tables = TABLES, .device = &DEVICE, .many_chips = true};
