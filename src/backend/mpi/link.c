/* link.c - see link.h. */
#define _GNU_SOURCE
#include "backend/mpi/link_parts.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#ifndef RF_LIBEXEC
#define RF_LIBEXEC "/usr/local/libexec"
#endif

/* Group i has the tag TAG_GROUP + i, and channel i has the tag TAG_CHANNEL + i. With TAG_LATE, a
 * rank tells rank 0 that the rank gives up. */
enum { TAG_MESSAGE = 1, TAG_BEGIN, TAG_GROUP, TAG_LATE = TAG_GROUP + ALL_GROUPS, TAG_LETTER, TAG_CHANNEL };

static link_state *process;

/* ---- the launcher and its library ------------------------------------------------------------ */

/* For each launcher: the variables with the number of a process and the number of processes, and
 * the shim of the launcher's library. */
static const struct {
  const char *rank, *ranks, *shim;
} LAUNCHER[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "openmpi"},
                {"PMI_RANK", "PMI_SIZE", "mpich"},
                {"PMIX_RANK", "SLURM_STEP_NUM_TASKS", "openmpi"}};
enum { LAUNCHERS = sizeof LAUNCHER / sizeof *LAUNCHER };

static int number_of(const char *name) {
  const char *text = getenv(name);
  char *end = NULL;
  long number = text ? strtol(text, &end, 10) : -1;
  return text && end != text && !*end && number >= 0 && number < 1 << 24 ? (int)number : -1;
}

static int launcher(void) {
  for (int i = 0; i < LAUNCHERS; i++)
    if (number_of(LAUNCHER[i].rank) >= 0) return i;
  return -1;
}

bool rf_link_launched(int *rank, int *ranks) {
  int by = launcher(), count = by < 0 ? 1 : number_of(LAUNCHER[by].ranks);
  *rank = by < 0 ? 0 : number_of(LAUNCHER[by].rank);
  *ranks = count < 0 ? 0 : count;
  return by >= 0 && *ranks != 1;
}

static bool try_file(const char *folder, int length, const char *sub, const char *name, char path[4400]) {
  snprintf(path, 4400, "%.*s/%srafter-mpi-%.100s.so", length, folder, sub, name);
  return !access(path, R_OK);
}

/* Finds the shim: the file that the user named, a file next to the program or next to this library,
 * or an installed file. */
static bool find_shim(const char *name, char path[4400]) {
  char self[4096];
  Dl_info library;
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  self[length < 0 ? 0 : length] = 0;
  const char *files[] = {self, dladdr((void *)(uintptr_t)find_shim, &library) ? library.dli_fname : NULL};
  if (strchr(name, '/')) return snprintf(path, 4400, "%s", name), !access(path, R_OK);
  for (int i = 0; i < 2; i++) {
    const char *slash = files[i] ? strrchr(files[i], '/') : NULL;
    if (!slash) continue;
    int folder = (int)(slash - files[i]);
    if (try_file(files[i], folder, "", name, path) || try_file(files[i], folder, "../libexec/", name, path))
      return true;
  }
  return try_file(RF_LIBEXEC, (int)strlen(RF_LIBEXEC), "", name, path);
}

static rf_status load_shim(link_state *s, rf_error *error) {
  static const char *const INSTALL =
      "./dev setup --mpi installs MPI, and ./dev build makes the file; or name "
      "another launcher's library: RAFTER_MPI=openmpi, mpich or a file";
  const char *named = getenv("RAFTER_MPI"), *name = named && *named ? named : LAUNCHER[launcher()].shim;
  char path[4400];
  if (!find_shim(name, path))
    return RF_FAIL(
        error, RAFTER_FAILED, INSTALL,
        "the file for this launcher's MPI library is missing (expected rafter-mpi-%.100s.so next to "
        "the program)",
        name);
  /* Open MPI loads further libraries, which need the symbols of Open MPI */
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    return RF_FAIL(error, RAFTER_FAILED, INSTALL, "cannot load the MPI library (%.300s)", dlerror());
  const rf_mpi_abi *(*table)(void);
  *(void **)&table = dlsym(library, RF_MPI_SYMBOL);
  s->mpi = table ? table() : NULL;
  if (s->mpi && s->mpi->version == RF_MPI_ABI) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "build rafter again", "%.300s belongs to another version of rafter",
                 path);
}

/* ---- beginning and end ----------------------------------------------------------------------- */

/* If a rank ended alone after an error, the other ranks would wait for this rank. So the rank ends
 * all ranks. */
static void end_process(int status, void *unused) {
  enum { INTERRUPTED = 130 };
  (void)unused;
  link_state *s = process;
  if (!s) return;
  /* this lock keeps the thread of flights from further calls */
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 2;
  pthread_mutex_timedlock(&s->library, &limit);
  if (status == 0 || status == INTERRUPTED) {
    if (!s->link.failed) s->mpi->close();
    return;
  }
  if (s->ended) return; /* MPI_Abort may wait until the launcher ends this process */
  /* gives the launcher of MPICH time to read our message, which it would otherwise drop */
  nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
  s->mpi->abort(status);
}

static seat own_seat(void) {
  seat mine = {.process = getpid()};
  struct stat info;
  gethostname(mine.host, sizeof mine.host - 1);
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  if (file && !fgets(mine.boot, sizeof mine.boot, file)) mine.boot[0] = 0;
  if (file) fclose(file);
  if (!stat("/proc/self/ns/pid", &info)) mine.space = info.st_ino;
  return mine;
}

static rf_status start(link_state *s, rf_error *error) {
  char words[256] = "";
  const char *thread = getenv("RAFTER_MPI_THREAD");
  int said_rank, said_ranks, code, serialized = !thread || strcmp(thread, "0") != 0;
  rf_link *link = &s->link;
  /* Other processes would wait for a process that ended before this call. Then SIGALRM ends
   * them. */
  alarm((unsigned)link->seconds);
  if ((code = s->mpi->open(&link->rank, &link->ranks, &link->together, &serialized))) {
    pthread_mutex_lock(&s->library);
    s->mpi->describe(code, words, sizeof words);
    pthread_mutex_unlock(&s->library);
    return RF_FAIL(error, RAFTER_FAILED, "try the launcher with another program first",
                   "the MPI library does not start (%s)", words);
  }
  link->threaded = serialized;
  s->mpi->library(link->library, sizeof link->library);
  rf_link_launched(&said_rank, &said_ranks);
  if (link->ranks == 1 && said_ranks > 1)
    return RF_FAIL(error, RAFTER_FAILED,
                   "use the mpirun of this library, or set RAFTER_MPI to openmpi or mpich",
                   "the launcher started %d processes, but %s sees one", said_ranks, link->library);
  s->room = 2 * link->ranks + 2;
  s->seat = calloc((size_t)link->ranks, sizeof *s->seat);
  s->exchange.met = calloc((size_t)link->ranks, sizeof *s->exchange.met);
  s->exchange.byte = calloc((size_t)link->ranks, 1);
  s->exchange.message = calloc(2 * (size_t)link->ranks, sizeof *s->exchange.message);
  pthread_mutex_init(&s->library, NULL);
  pthread_mutex_init(&s->flying, NULL);
  pthread_cond_init(&s->begun, NULL);
  for (int g = 0; g < RF_LINK_GROUPS; g++) {
    s->group[g].message = calloc((size_t)s->room, sizeof *s->group[g].message);
    if (!s->group[g].message || !s->seat || !s->exchange.met || !s->exchange.message || !s->exchange.byte)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening MPI");
  }
  const seat mine = own_seat();
  if ((code = s->mpi->share(&mine, s->seat, sizeof mine))) {
    s->mpi->describe(code, words, sizeof words);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "the ranks of MPI do not reach each other (%s)", words);
  }
  alarm(0);
  return RAFTER_OK;
}

rf_status rf_link_open(rf_link **link, rf_error *error) {
  int rank, ranks;
  *link = process ? &process->link : NULL;
  if (process || !rf_link_launched(&rank, &ranks)) return RAFTER_OK;
  link_state *s = calloc(1, sizeof *s);
  if (!s) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening MPI");
  int limit = number_of("RAFTER_MPI_SECONDS");
  s->link.seconds = limit > 0 ? limit : RF_LINK_SECONDS;
  rf_status status = load_shim(s, error);
  if (status == RAFTER_OK) status = start(s, error);
  if (status != RAFTER_OK) { /* an MPI library cannot be started twice */
    if (!s->mpi) free(s);
    return status;
  }
  process = s;
  on_exit(end_process, NULL);
  *link = &s->link;
  return RAFTER_OK;
}

rf_link *rf_link_of_process(void) { return process ? &process->link : NULL; }

const char *rf_link_host(const rf_link *link, int rank) { return state_of(link)->seat[rank].host; }

/* ---- messages -------------------------------------------------------------------------------- */

/* Any thread may call these functions of the library. */
static int post(link_state *s, message *m, void *data, int64_t bytes, int tag) {
  pthread_mutex_lock(&s->library);
  s->link.in_library = &errno;
  int code = m->out ? s->mpi->send(data, bytes, m->rank, tag, &m->request)
                    : s->mpi->receive(data, bytes, m->rank, tag, &m->request);
  s->link.in_library = NULL;
  pthread_mutex_unlock(&s->library);
  return code;
}

static int test(link_state *s, message *m, int *done) {
  pthread_mutex_lock(&s->library);
  s->link.in_library = &errno;
  int code = s->mpi->test(&m->request, done);
  s->link.in_library = NULL;
  pthread_mutex_unlock(&s->library);
  return code;
}

/* True for the first failure. Then the caller writes the error, and sets link.failed afterwards. If
 * another thread fails at the same time, this function waits until link.failed is set, and returns
 * false. */
static bool is_first_failure(link_state *s) {
  if (!atomic_exchange(&s->failing, true)) return true;
  while (!s->link.failed) sched_yield();
  return false;
}

static bool fail_call(link_state *s, const message *m, int code) {
  char words[200] = "";
  if (!is_first_failure(s)) return false;
  s->mpi->describe(code, words, sizeof words);
  RF_FAIL(&s->link.error, RAFTER_FAILED, "the last complete checkpoint is untouched; --resume continues",
          "a message %s rank %d (%s) failed: %s", m->out ? "to" : "from", m->rank,
          rf_link_host(&s->link, m->rank), words);
  s->link.failed = true;
  return false;
}

/* Polls messages for `seconds` seconds. Returns true if all messages are done. */
static bool poll_for(link_state *s, message *list, int count, double seconds) {
  int64_t end = rf_now_ns() + (int64_t)(1e9 * seconds);
  for (int left = 1; left > 0; nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL)) {
    left = 0;
    for (int i = 0; i < count; i++) {
      int done = list[i].done;
      if (!done && test(s, &list[i], &done)) done = 0;
      list[i].done = done;
      left += !done;
    }
    if (rf_now_ns() > end) return left == 0;
  }
  return true;
}

/* The rank for which this rank waits may itself wait for a third rank. All ranks that wait give up
 * at about the same time, and tell rank 0. So rank 0 finds the rank that is silent. Other ranks
 * print their errors later (cli/main.c), and return the rank for which they wait. */
static int find_silent(link_state *s, int rank) {
  static char word; /* static, because the library may use this byte until the process ends */
  rf_link *link = &s->link;
  message *list = calloc((size_t)link->ranks, sizeof *list);
  char *words = calloc((size_t)link->ranks, 1); /* not freed, because messages may still arrive */
  if (!list || !words) return rank;
  if (link->rank > 0) {
    list[0].out = true;
    if (!post(s, &list[0], &word, 1, TAG_LATE)) poll_for(s, list, 1, 0.5);
    return rank;
  }
  for (int r = 1; r < link->ranks; r++) {
    list[r].rank = r;
    if (post(s, &list[r], &words[r], 1, TAG_LATE)) return rank;
  }
  poll_for(s, list + 1, link->ranks - 1, 1.5);
  for (int r = 1; r < link->ranks && list[rank].done; r++)
    if (!list[r].done) return r;
  return rank;
}

static bool fail_late(link_state *s, const message *m) {
  char more[80] = "";
  if (!is_first_failure(s)) return false;
  s->link.failed = true; /* this ends the waits of this process */
  int silent = find_silent(s, m->rank);
  if (silent != m->rank) snprintf(more, sizeof more, "; rank %d waits for it", m->rank);
  RF_FAIL(&s->link.error, RAFTER_FAILED,
          "look whether that process and its machine still run; RAFTER_MPI_SECONDS sets the limit; --resume "
          "continues from the last checkpoint",
          "rank %d (%s) did not %s a message within %.0f s%s", silent, rf_link_host(&s->link, silent),
          m->out && silent == m->rank ? "take" : "send", s->link.seconds, more);
  return false;
}

/* True if the process of a rank on this machine has ended, for example because it was killed. Not
 * every MPI library reports the end of a process. */
static bool has_ended(const link_state *s, int rank) {
  const seat *mine = &s->seat[s->link.rank], *other = &s->seat[rank];
  return *mine->boot && mine->space && !strcmp(mine->boot, other->boot) && mine->space == other->space &&
         kill((pid_t)other->process, 0) && errno == ESRCH;
}

static bool fail_ended(link_state *s, const message *m) {
  if (!is_first_failure(s)) return false;
  s->ended = true;
  RF_FAIL(&s->link.error, RAFTER_FAILED,
          "its error or the launcher may say why; --resume continues from the last checkpoint",
          "rank %d (%s) has ended", m->rank, rf_link_host(&s->link, m->rank));
  s->link.failed = true;
  return false;
}

bool rf_link_look(link_state *s, const message *m, double waited, rf_link_watch *w) {
  enum { PATIENCE = 2 };
  if (waited > s->link.seconds) return fail_late(s, m);
  if (waited < w->next) return true;
  w->next = waited + PATIENCE;
  bool ended = has_ended(s, m->rank);
  if (ended && w->ended == m->rank) return fail_ended(s, m);
  w->ended = ended ? m->rank : -1;
  return true;
}

void rf_link_pause(int64_t polls) {
  enum { SPINS = 200, YIELDS = 20000 };
  if (polls < SPINS) return;
  if (polls < YIELDS) sched_yield();
  else nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* Tests whether the other ranks have begun the exchange. Returns true when all ranks have begun. */
static bool all_began(link_state *s) {
  exchange *e = &s->exchange;
  for (int i = 0; i < e->count && e->missing > 0; i++) {
    message *m = &e->message[i];
    int done = 0, code = m->done ? 0 : test(s, m, &done);
    if (code) return fail_call(s, m, code);
    if (m->done || !done) continue;
    m->done = true;
    e->missing -= !m->out;
    if (!m->out) e->last = m->rank;
  }
  return e->missing == 0;
}

void rf_link_record_wait(rf_remote cause, int rank, int64_t begin, int64_t end) {
  enum { SHOWN_NS = 500 }; /* run/gaps.c */
  rf_lanes *lanes = rf_lanes_on;
  if (!lanes || end - begin < SHOWN_NS) return;
  rf_lane_put(&lanes->lane[0], (rf_stamp){begin, end, rank, cause, 0, RF_SPAN_REMOTE, lanes->plan});
}

/* Adds the wait since `begin` to the times of its causes. `there` is the time at which all ranks
 * had begun, or 0 if not all have begun. `last` is the message that came last. */
static void count_wait(link_state *s, int64_t begin, int64_t there, const message *last) {
  enum { WORD = 4096 }; /* a message of more bytes takes time on the network */
  int64_t now = rf_now_ns(), late = there ? there - begin : 0;
  s->link.waited_ns += now - begin;
  if (!s->exchange.open) {
    bool stage = s->posts && last >= s->posted && last < s->posted + s->posts;
    *(stage ? &s->link.times.stage_ns : &s->link.times.between_ns) += now - begin;
    rf_link_record_wait(last->bytes > WORD && !stage ? RF_REMOTE_NETWORK : RF_REMOTE_LATE, last->rank, begin,
                        now);
    return;
  }
  s->link.times.late_ns += late;
  s->link.times.network_ns += now - begin - late;
  rf_link_record_wait(RF_REMOTE_LATE, s->exchange.last, begin, begin + late);
  rf_link_record_wait(RF_REMOTE_NETWORK, last->rank, begin + late, now);
}

static bool wait_for(link_state *s, message *list, int count) {
  int64_t begin = rf_now_ns(), there = 0, polls = 0;
  const message *came = list;
  rf_link_watch seen = {1, -1};
  for (int left = count; left > 0 && !s->link.failed; polls++) {
    int last = -1;
    if (s->exchange.missing > 0 && all_began(s)) there = rf_now_ns();
    for (int i = 0; i < count; i++) {
      message *m = &list[i];
      int done = 0, code = m->done ? 0 : test(s, m, &done);
      if (code) return fail_call(s, m, code);
      if (!m->done && !done) last = i;
      if (m->done || !done) continue;
      m->done = true;
      came = m;
      left--;
    }
    if (last < 0) break;
    if (s->flights) rf_link_poll_flights(&s->link);
    rf_link_pause(polls);
    if (polls % 64 == 63 && !rf_link_look(s, &list[last], 1e-9 * (double)(rf_now_ns() - begin), &seen))
      return false;
  }
  /* the last message may have come with the byte that says that the other rank has begun */
  if (!there && s->exchange.missing > 0 && !s->link.failed && all_began(s)) there = rf_now_ns();
  if (count > 0) count_wait(s, begin, there, came);
  return !s->link.failed;
}

static bool begin(link_state *s, message *m, void *data, int64_t bytes, int tag) {
  m->done = false;
  m->bytes = bytes;
  int code = post(s, m, data, bytes, tag);
  return code ? fail_call(s, m, code) : true;
}

/* At the first message to or from another rank, tells the other rank that this rank has begun the
 * exchange. */
static bool meet(link_state *s, int rank) {
  static char out; /* the value says nothing */
  exchange *e = &s->exchange;
  if (!e->open || e->met[rank] == e->number) return true;
  e->met[rank] = e->number;
  message *m = &e->message[e->count];
  m[0] = (message){.rank = rank};
  m[1] = (message){.rank = rank, .out = true};
  if (!begin(s, &m[0], &e->byte[rank], 1, TAG_BEGIN) || !begin(s, &m[1], &out, 1, TAG_BEGIN)) return false;
  e->count += 2;
  e->missing++;
  return true;
}

void rf_link_begin_exchange(rf_link *link) {
  exchange *e = &state_of(link)->exchange;
  if (link->failed) return;
  e->open = true;
  e->number++;
  e->begin_ns = rf_now_ns();
}

void rf_link_end_exchange(rf_link *link) {
  link_state *s = state_of(link);
  exchange *e = &s->exchange;
  if (!e->open) return;
  if (!link->failed && e->count) wait_for(s, e->message, e->count);
  link->times.exchanges++;
  link->times.all_ns += rf_now_ns() - e->begin_ns;
  e->open = false;
  e->count = e->missing = 0;
}

static bool begin_in(rf_link *link, int number, bool out, int rank, void *data, int64_t bytes) {
  link_state *s = state_of(link);
  message_group *g = &s->group[number];
  if (link->failed) return false;
  if ((number < RF_LINK_GROUPS && !meet(s, rank)) || (g->count == s->room && !rf_link_wait(link, number)))
    return false;
  message *m = &g->message[g->count++];
  *m = (message){.rank = rank, .out = out};
  return begin(s, m, data, bytes, TAG_GROUP + number);
}

bool rf_link_begin_send(rf_link *link, int group, int to, const void *data, int64_t bytes) {
  return begin_in(link, group, true, to, (void *)(uintptr_t)data, bytes);
}

bool rf_link_begin_receive(rf_link *link, int group, int from, void *data, int64_t bytes) {
  return begin_in(link, group, false, from, data, bytes);
}

bool rf_link_wait(rf_link *link, int number) {
  link_state *s = state_of(link);
  message_group *g = &s->group[number];
  bool fine = !link->failed && wait_for(s, g->message, g->count);
  g->count = 0;
  return fine;
}

bool rf_link_done(rf_link *link, int number) {
  link_state *s = state_of(link);
  message_group *g = &s->group[number];
  int left = 0;
  for (int i = 0; i < g->count && !link->failed; i++) {
    message *m = &g->message[i];
    int done = 0, code = m->done ? 0 : test(s, m, &done);
    if (code) return !fail_call(s, m, code);
    left += !m->done && !done;
    if (m->done || !done) continue;
    m->done = true;
    g->last = m->rank;
  }
  if (left && !link->failed) return false;
  g->count = 0;
  return true;
}

rf_status rf_link_reserve(rf_link *link, int count, rf_error *error) {
  link_state *s = state_of(link);
  if (count <= s->posts) return RAFTER_OK;
  message *more = realloc(s->posted, (size_t)count * sizeof *more);
  if (!more) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  for (int i = s->posts; i < count; i++) more[i] = (message){.done = true};
  s->posted = more;
  s->posts = count;
  return RAFTER_OK;
}

bool rf_link_post_message(rf_link *link, int number, const rf_link_post *post) {
  link_state *s = state_of(link);
  if (link->failed) return false;
  message *m = &s->posted[number];
  *m = (message){.rank = post->rank, .out = post->out};
  return begin(s, m, post->data, post->bytes, TAG_CHANNEL + post->channel);
}

bool rf_link_finish(rf_link *link, int number) {
  link_state *s = state_of(link);
  message *m = &s->posted[number];
  return !link->failed && (m->done || wait_for(s, m, 1));
}

void rf_link_poll(rf_link *link) {
  link_state *s = state_of(link);
  for (int i = 0; i < s->posts && !link->failed; i++) {
    message *m = &s->posted[i];
    int done = 0, code = m->done ? 0 : test(s, m, &done);
    if (code) fail_call(s, m, code);
    m->done |= done != 0;
  }
}

static rf_status pass(rf_link *link, bool out, int rank, void *data, int64_t bytes, rf_error *error) {
  link_state *s = state_of(link);
  for (int64_t at = 0, n; at < bytes && !link->failed; at += n) {
    n = bytes - at < RF_LINK_BYTES ? bytes - at : RF_LINK_BYTES;
    message m = {.rank = rank, .out = out};
    if (begin(s, &m, (char *)data + at, n, TAG_MESSAGE)) wait_for(s, &m, 1);
  }
  return rf_link_status(link, NULL, error);
}

rf_status rf_link_send(rf_link *link, int to, const void *data, int64_t bytes, rf_error *error) {
  return pass(link, true, to, (void *)(uintptr_t)data, bytes, error);
}

rf_status rf_link_receive(rf_link *link, int from, void *data, int64_t bytes, rf_error *error) {
  return pass(link, false, from, data, bytes, error);
}

rf_status rf_link_share(rf_link *link, void *data, int64_t bytes, rf_error *error) {
  if (!link) return RAFTER_OK;
  if (link->rank > 0) return rf_link_receive(link, 0, data, bytes, error);
  for (int rank = 1; rank < link->ranks; rank++) RF_TRY(rf_link_send(link, rank, data, bytes, error));
  return RAFTER_OK;
}

rf_status rf_link_status(const rf_link *link, const char *what, rf_error *error) {
  if (!link->failed) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, link->error.hint, "%s%s%s", what ? what : "", what ? ": " : "",
                 link->error.message);
}

static rf_status find_lowest(rf_link *link, rf_link_cores *cores, rf_error *error) {
  for (int rank = 1; rank < link->ranks && link->rank == 0; rank++) {
    rf_link_cores other;
    RF_TRY(rf_link_receive(link, rank, &other, sizeof other, error));
    if (other.isa < cores->isa) cores->isa = other.isa;
    if (other.threads < cores->threads) cores->threads = other.threads;
  }
  for (int rank = 1; rank < link->ranks && link->rank == 0; rank++)
    RF_TRY(rf_link_send(link, rank, cores, sizeof *cores, error));
  if (link->rank == 0) return RAFTER_OK;
  RF_TRY(rf_link_send(link, 0, cores, sizeof *cores, error));
  return rf_link_receive(link, 0, cores, sizeof *cores, error);
}

rf_status rf_link_agree(rf_link *link, rf_link_cores *cores, rf_error *error) {
  link_state *s = state_of(link);
  bool same = s->agreed && cores->isa == s->mine.isa && cores->threads == s->mine.threads;
  if (!s->agreed) {
    s->mine = s->lowest = *cores;
    RF_TRY(find_lowest(link, &s->lowest, error));
    s->agreed = same = true;
  }
  if (same) *cores = s->lowest;
  return RAFTER_OK;
}

/* ---- letters --------------------------------------------------------------------------------- */

rf_status rf_link_begin_letter(rf_link *link, rf_link_letter *letter, void *data, int64_t bytes,
                               rf_error *error) {
  message m = {.rank = letter->rank, .out = letter->out};
  if (!link->failed && begin(state_of(link), &m, data, bytes, TAG_LETTER)) {
    *letter = (rf_link_letter){m.rank, m.out, true, m.request, 0, 1, -1};
    return RAFTER_OK;
  }
  return rf_link_status(link, NULL, error);
}

rf_status rf_link_arrived(rf_link *link, rf_link_letter *letter, bool *done, rf_error *error) {
  link_state *s = state_of(link);
  message m = {.request = letter->request, .rank = letter->rank, .out = letter->out};
  rf_link_watch seen = {letter->next, letter->ended};
  int arrived = 0, code = link->failed ? 0 : test(s, &m, &arrived);
  double now = rf_now_seconds();
  *done = arrived;
  letter->request = m.request;
  letter->open = !arrived;
  if (letter->since == 0) letter->since = now;
  if (code) fail_call(s, &m, code);
  else if (!arrived && !link->failed) rf_link_look(s, &m, now - letter->since, &seen);
  letter->next = seen.next;
  letter->ended = seen.ended;
  return rf_link_status(link, NULL, error);
}
