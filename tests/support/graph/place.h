/* place.h - coordinates of a chip in its mesh, by axis. */
#ifndef RF_TEST_PLACE_H
#define RF_TEST_PLACE_H

#include "graph/mesh/mesh.h"

static inline void mesh_place(const rf_mesh *mesh, int64_t chip, int32_t place[RF_AXES]) {
  for (int a = RF_AXES - 1; a >= 0; a--) {
    int64_t extent = rf_mesh_extent(mesh, (rf_axis)a);
    place[a] = (int32_t)(chip % extent);
    chip /= extent;
  }
}

#endif
