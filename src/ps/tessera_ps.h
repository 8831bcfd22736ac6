/* Parameter servers for programs in C, and for whatever calls C: libtessera_ps.so.
 *
 * A client belongs to one thread at a time; several clients are independent. No call throws or ends the process. Each returns 0
 * (TESSERA_PS_OK) or the kind of the failure, and tessera_ps_last_error() then says what happened, where, and what to do.
 *
 * Servers that other hosts reach ask for a secret, which comes from TESSERA_SECRET or from the file that TESSERA_SECRET_FILE names, as
 * everywhere in Tessera; it is never an argument. */
#ifndef TESSERA_PS_H
#define TESSERA_PS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TESSERA_PS_API __attribute__((visibility("default")))

enum tessera_ps_result {
  TESSERA_PS_OK = 0,
  TESSERA_PS_INVALID = 1,   /* an argument or a table's description will not do, or the secret is another one */
  TESSERA_PS_NOT_FOUND = 2, /* no such table or client at the server */
  TESSERA_PS_CORRUPT = 3,   /* what came over the network cannot be right */
  TESSERA_PS_IO = 4,        /* the operating system refused */
  TESSERA_PS_EXHAUSTED = 5, /* no memory */
  TESSERA_PS_PEER_LOST = 6, /* a server is gone; the client is of no more use */
  TESSERA_PS_DEADLINE = 7,  /* no answer in time; the client is of no more use */
  TESSERA_PS_INTERRUPTED = 8,
  TESSERA_PS_INTERNAL = 9 /* a defect */
};

typedef struct tessera_ps_client tessera_ps_client;

/* One of the workers that train together, who see each other's steps. */
typedef struct tessera_ps_worker {
  int32_t index, count;
  uint64_t run;       /* equal for the workers of a run, and another number for each run */
  int64_t first_step; /* steps that the run has made before; equal for all */
} tessera_ps_worker;

/* Connects to `count` servers, "HOST:PORT" or "HOST:PORT/HOST:PORT" of a pair; every client of a table names the same ones in the same
 * order. `worker`: NULL for a client that trains with nobody, or only looks. `deadline_seconds`: of an answer; 0: a minute. */
TESSERA_PS_API int tessera_ps_open(const char* const* servers, size_t count, const tessera_ps_worker* worker, double deadline_seconds,
                                   tessera_ps_client** client);
/* NULL is allowed. */
TESSERA_PS_API void tessera_ps_close(tessera_ps_client* client);

/* Makes the table where it is not there yet; one of the same name that differs is refused. `description`: a JSON object with `name` and
 * `dimension` (1 to 65536), and what is not as by default:
 *   {"type": "fp32", "consistency": "asynchronous", "staleness": 1, "wire": "fp32",
 *    "optimizer": {"rule": "adagrad", "row_moment": false, "learning_rate": 0.05, "epsilon": 1e-8, "initial_moment": 0, "beta1": 0.9,
 *                  "beta2": 0.999, "l1": 0, "l2": 0, "beta": 1, "clip_norm": NUMBER or not there},
 *    "initializer": {"kind": "uniform", "scale": 0.01, "seed": 1},
 *    "lifecycle": {...} or not there}
 * Types, of rows at the servers and on the wire: fp32, bf16, int8. Rules: add, sgd, adagrad, adam, ftrl. Kinds: zero, uniform, normal. Consistency: synchronous, asynchronous.
 * With a lifecycle (how rows come, grow and go; ps/lifecycle.hpp says what its members mean), whose `growth` and `slots` are lists, and empty
 * where they are not there:
 *   {"decay": 0.98, "click_weight": 1, "unclicked_weight": 0.1, "waiting_keys": 4194304, "forget_after": 7, "slot_bits": 16,
 *    "admission": {"after": 1, "probability": NUMBER or not there}, "eviction": {"unseen": PERIODS, "below": SCORE, or not there},
 *    "growth": [{"seen": 0, "dimension": 4}, {"seen": 10, "dimension": 16}],
 *    "slots": [{"slot": 0, "learning_rate_scale": 1, "admission": ..., "eviction": ..., "growth": ..., or not there}]} */
TESSERA_PS_API int tessera_ps_open_table(tessera_ps_client* client, const char* description, uint64_t* table);

/* `values`: room for count * dimension floats, in the order of the keys, which may repeat. `create`: 0 leaves keys without a row so, and
 * gives zeros for them. */
TESSERA_PS_API int tessera_ps_pull(tessera_ps_client* client, uint64_t table, const uint64_t* keys, size_t count, float* values, int create);
/* `gradients`: count * dimension floats; those of a key that repeats are added up, and the table's optimizer steps once. `refused`, unless
 * NULL: how many rows' gradients were not finite and changed nothing. */
TESSERA_PS_API int tessera_ps_push(tessera_ps_client* client, uint64_t table, const uint64_t* keys, size_t count, const float* gradients,
                                   uint64_t* refused);
/* What samples say of a key, whose tables have a lifecycle: of one look-up in one sample, 1 show, and 1 click where it was clicked; of
 * several, their sums. */
typedef struct tessera_ps_impressions {
  float shows, clicks;
} tessera_ps_impressions;
/* As tessera_ps_push, of a table with a lifecycle, whose keys tessera_ps_push gives one show each. `impressions`: one a key; those of a key
 * that repeats are added up. One that is not finite or less than 0 is refused with its gradient. Another table is refused with
 * TESSERA_PS_INVALID. */
TESSERA_PS_API int tessera_ps_push_impressions(tessera_ps_client* client, uint64_t table, const uint64_t* keys, size_t count,
                                               const float* gradients, const tessera_ps_impressions* impressions, uint64_t* refused);
/* Ends a period of a table with a lifecycle, of one of its clients: shows and clicks decay, and rows go. `evicted`, unless NULL: how many. */
TESSERA_PS_API int tessera_ps_end_period(tessera_ps_client* client, uint64_t table, uint64_t* evicted);
/* Of the pushes that follow, of all clients. */
TESSERA_PS_API int tessera_ps_set_learning_rate(tessera_ps_client* client, uint64_t table, float learning_rate);
/* Of a worker: it has pushed all of this step. */
TESSERA_PS_API int tessera_ps_end_step(tessera_ps_client* client);

/* A JSON list, one object a server, with `backup` (null: of no pair), `workers`, `slowest`, `fastest` and `tables`. The text is the client's, until its next
 * status or its end. */
TESSERA_PS_API int tessera_ps_status(tessera_ps_client* client, const char** json);

/* Of this thread's last call that failed; never NULL. Valid until the thread's next failure. */
TESSERA_PS_API const char* tessera_ps_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
