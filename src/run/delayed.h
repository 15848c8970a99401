/* delayed.h - how much of the cores other programs took from this process. */
#ifndef RF_RUN_DELAYED_H
#define RF_RUN_DELAYED_H

typedef struct rf_delays {
  double waited, used; /* seconds that all threads waited for a core, and that they had one */
} rf_delays;
/* The seconds since the process began. */
rf_delays rf_delays_now(void);
/* waited / (waited + used) since `begin`. 0: no thread waited, or the times are unknown. */
double rf_delays_part(const rf_delays *begin);

#endif
