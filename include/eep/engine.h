/**
 * @file
 * The engine: a checkpoint spread over MPI ranks, and requests that it answers.
 *
 * Every rank runs the same calls in the same order with the same arguments ("collective" below):
 *
 *     eep_engine_create()   joins the ranks, checks the checkpoint; reads nothing large
 *     eep_engine_submit()   any number of requests, before or after loading
 *     eep_engine_load()     reads the weights that this rank needs
 *     eep_engine_step()     one forward pass over all ranks; again until it is idle
 *     eep_engine_next_event()  tokens and ends of requests, the same on every rank
 *     eep_engine_destroy()
 *
 * A request's tokens and logits do not depend on the number of ranks, on the layout of experts, on
 * the other requests, on the chunk size, the threads or the kernels: the same bits.
 *
 * Requests are spread over the ranks (data parallel: attention and KV cache), experts over the
 * ranks' seats (expert parallel). One thread per process calls these functions; none is safe to
 * call from two threads at a time. There is at most one engine per process.
 *
 * When a function fails, eep_error_text() says what, where, which value and what to do; a failure
 * of one rank fails the call on all of them with the same text, except EEP_ERR_PEER_LOST.
 */
#ifndef EEP_ENGINE_H
#define EEP_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <eep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Which fields of eep_engine_params are set; the others take their defaults. */
enum eep_engine_field {
    EEP_ENGINE_REDUNDANT = 1 << 0,
    EEP_ENGINE_LAYOUT = 1 << 1,
    EEP_ENGINE_MAX_BATCH_TOKENS = 1 << 2,
    EEP_ENGINE_MAX_SEQUENCES = 1 << 3,
    EEP_ENGINE_KV_TOKENS = 1 << 4,
    EEP_ENGINE_THREADS = 1 << 5,
    EEP_ENGINE_KERNELS = 1 << 6,
    EEP_ENGINE_NODE_SIZE = 1 << 7,
    EEP_ENGINE_PROGRESS = 1 << 8,
    EEP_ENGINE_TIMEOUT = 1 << 9,
    EEP_ENGINE_REFUSED = 1 << 10,
    EEP_ENGINE_CACHE = 1 << 11,
    EEP_ENGINE_CACHE_DIR = 1 << 12,
    EEP_ENGINE_SPARE_FRAMES = 1 << 13,
    EEP_ENGINE_ATTACH_TIMEOUT = 1 << 14,
    EEP_ENGINE_REBALANCE = 1 << 15,
    EEP_ENGINE_ON_LOSS = 1 << 16,
    EEP_ENGINE_SILENT_AFTER = 1 << 17,
    EEP_ENGINE_EP_SIZE = 1 << 18,
    EEP_ENGINE_MAX_EP_SIZE = 1 << 19,
    EEP_ENGINE_BACKUP = 1 << 20,
};

/** What becomes of the engine when a rank is lost; see doc/membership.md. */
enum eep_loss_mode {
    EEP_LOSS_STOP,    /**< the step fails with EEP_ERR_PEER_LOST */
    EEP_LOSS_SHRINK,  /**< the ranks that are left take over its seats and requests and go on */
    EEP_LOSS_RESPAWN, /**< the same, and a parked process takes its place as soon as it has loaded
                       */
};

/** Whether experts are also kept where they are not executed; see doc/backup.md. */
enum eep_backup_mode {
    EEP_BACKUP_NONE,
    EEP_BACKUP_PARTNER, /**< each in the memory of one more node, so that the loss of a node needs
                           no disk; made while serving */
};

/** Who decides which expert goes to which slot; see doc/balancing.md. */
enum eep_balance_policy {
    EEP_BALANCE_EEP,      /**< lowest largest load for the fewest copies */
    EEP_BALANCE_DEEPSEEK, /**< the public algorithm of DeepSeek */
    EEP_BALANCE_SHUFFLE,  /**< another arbitrary layout each time: for tests and benchmarks */
};

/**
 * Moving experts while the engine serves (needs a weight cache). The loads are the tokens that each
 * expert of each MoE layer got in the last steps.
 */
struct eep_rebalance_params {
    uint64_t every;      /**< start one every so many steps; 0: not by steps */
    double threshold;    /**< start one when a layer's largest load of a seat is at least so many
                              times the mean, on average over the layers; 0: not by imbalance */
    uint32_t window;     /**< steps that are counted; 0: `every`, or 256 */
    double min_gain;     /**< a layer moves only if its largest load falls by at least this part;
                              0: 0.005 */
    uint32_t max_copies; /**< of a layer in one rebalance; 0: no limit */
    uint32_t layers_per_chunk; /**< layers that change in one version; 0: as many as the spare
                                    frames allow, or one when a move is made in place */
    enum eep_balance_policy policy;
    bool dry_run; /**< plan and say what would be gained, move nothing */
    bool verify;  /**< after each move compare every slot's bytes with the checkpoint: slow, for
                       those who want proof */
};

/** What becomes of the packed weights; see doc/weight-cache.md. */
enum eep_cache_mode {
    EEP_CACHE_OFF,     /**< in this process's own memory */
    EEP_CACHE_JOB,     /**< shared by the ranks of a node, removed at the end of the last one */
    EEP_CACHE_KEEP,    /**< left for the next start, which attaches instead of loading */
    EEP_CACHE_REQUIRE, /**< as KEEP; without room for it loading fails instead of going on without
                        */
};

/** How to make an engine. Strings are copied. */
struct eep_engine_params {
    uint64_t fields;           /**< of enum eep_engine_field: which of the fields below count */
    const char *model;         /**< a Hugging Face model directory; always needed */
    uint32_t redundant;        /**< extra expert slots of each MoE layer, for replicas; default 0 */
    const char *layout;        /**< file with an explicit initial layout; excludes `redundant` */
    uint32_t max_batch_tokens; /**< rows of one rank in one step: the chunk of long prompts;
                                    default 512 */
    uint32_t max_sequences;    /**< requests that one rank runs at a time; default 64 */
    uint64_t kv_tokens;  /**< positions of one rank's KV cache; default: what the requests that
                              were submitted before loading need, or 16384 if there are none */
    uint32_t threads;    /**< per rank; default: the cores that the launcher gave this rank, else
                              the machine's cores over its ranks */
    const char *kernels; /**< "ref", "avx2", "avx512", "neon" or "auto", the default */
    uint32_t node_size;  /**< every so many ranks count as one node; default: real nodes */
    /** Called while loading with bytes done of bytes in all on this rank; any may be NULL. */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *progress_context;
    uint64_t timeout_ns; /**< longest wait for another rank; default 600 s */
    /** Called when eep_engine_create() fails, before this rank leaves the others: the place for a
     *  program to say eep_error_text(), since a launcher may end the job, and drop its output,
     *  as soon as one rank has ended. */
    void (*refused)(void *context, enum eep_status status);
    void *refused_context;
    enum eep_cache_mode cache; /**< default off */
    const char *cache_dir;     /**< base directory of caches; default /dev/shm/eep-UID */
    uint32_t spare_frames; /**< of each seat of a new cache, so that experts move without a pause;
                                default one for each MoE layer */
    uint64_t attach_timeout_ns; /**< longest wait for another engine that fills or changes the
                                     cache; default 300 s */
    struct eep_rebalance_params rebalance; /**< default: never */
    /** Default SHRINK. Without a launcher with fault tolerance it is STOP; without a weight cache
     * the experts of a lost rank are read from the checkpoint. */
    enum eep_loss_mode on_loss;
    uint64_t silent_after_ns; /**< a rank that shows no life for so long (it is stopped) is killed
                                   and counts as lost; 0: never; default 10 s */
    uint32_t ep_size;     /**< ranks to begin with; the other processes that were started are parked
                               until an administrator calls them; default: all */
    uint32_t max_ep_size; /**< seats of a new layout: so many ranks can share the experts. Default:
                               as many as processes were started */
    enum eep_backup_mode backup; /**< default none; needs a weight cache */
};

struct eep_engine;

/**
 * Join the ranks and check the checkpoint, on rank 0 first: config, index, headers, every tensor's
 * name, dtype and shape. Collective.
 *
 * @param engine_out  owned by the caller, eep_engine_destroy(); set only on EEP_OK
 *
 * @retval EEP_ERR_FORMAT, EEP_ERR_IO, EEP_ERR_UNSUPPORTED  the checkpoint or layout is refused
 * @retval EEP_ERR_INVALID    a parameter does not fit
 * @retval EEP_ERR_PEER_LOST  a rank ended or did not answer in time
 */
EEP_API enum eep_status eep_engine_create(const struct eep_engine_params *params,
                                          struct eep_engine **engine_out);

/**
 * Read the weights that this rank needs and take its memory. Collective. A process beyond
 * params.ep_size is parked afterwards.
 *
 * @retval EEP_ERR_NOMEM        the node's memory does not hold it; the text has the sum
 * @retval EEP_ERR_UNSUPPORTED  params.ep_size without a launcher with fault tolerance
 */
EEP_API enum eep_status eep_engine_load(struct eep_engine *engine);

/** True while this process is no rank: it holds no weights, no request and no event, and of the
 *  calls below only eep_engine_wait() and eep_engine_destroy() work. So after loading, and after a
 *  step in which an administrator let this rank go. Local. */
EEP_API bool eep_engine_is_parked(const struct eep_engine *engine);

/**
 * Parked: sleep until this process is a rank again, or the job ends. What happened before is told
 * by events: EEP_EVENT_ACCEPTED of all requests, then the ends of those that have ended, in their
 * order; their tokens are known without events. Then go on with steps.
 *
 * @param ended_out  true: the others have ended in order; destroy the engine
 *
 * @retval EEP_ERR_PEER_LOST  all ranks have died
 */
EEP_API enum eep_status eep_engine_wait(struct eep_engine *engine, bool *ended_out);

/** Leave the ranks and free all. NULL is allowed. Collective after success, local after a
 *  failure; then this rank's process should end. */
EEP_API void eep_engine_destroy(struct eep_engine *engine);

/** Both change when ranks are lost: those that are left keep their order, so that another process
 *  may become rank 0. */
EEP_API uint32_t eep_engine_rank(const struct eep_engine *engine);
EEP_API uint32_t eep_engine_ranks(const struct eep_engine *engine);

/** Entries of the model's vocabulary; ids are below it. */
EEP_API uint32_t eep_engine_vocab(const struct eep_engine *engine);

/** Longest prompt and answer together, in tokens. */
EEP_API uint32_t eep_engine_max_positions(const struct eep_engine *engine);

/**
 * Text to ids with the checkpoint's tokenizer (read at the first use). Local.
 *
 * @param ids_out  owned by the caller, free() it
 */
EEP_API enum eep_status eep_engine_encode(struct eep_engine *engine, const char *text, size_t bytes,
                                          uint32_t **ids_out, size_t *count_out);

/** Ids to text without special tokens; NUL-terminated, owned by the caller, free() it. Local. */
EEP_API enum eep_status eep_engine_decode(struct eep_engine *engine, const uint32_t *ids,
                                          size_t count, char **text_out);

/** Copy `bytes` bytes of rank 0 to all ranks. Collective. */
EEP_API enum eep_status eep_engine_broadcast(struct eep_engine *engine, void *buffer, size_t bytes);

/**
 * Agree on a status: EEP_OK if all ranks say so, else the first failing rank's status and text on
 * every rank. Collective.
 */
EEP_API enum eep_status eep_engine_agree(struct eep_engine *engine, const char *what,
                                         enum eep_status status);

/** A prompt and how to go on from it. */
struct eep_request {
    const uint32_t *prompt; /**< copied */
    size_t prompt_count;    /**< 1 .. max_positions - max_tokens */
    uint32_t max_tokens;    /**< tokens to generate; 0 only with `score` */
    double temperature;     /**< 0: the most likely token (greedy), ties to the lower id */
    uint32_t top_k;         /**< sample from the k most likely; 0: all */
    double top_p;           /**< sample from the smallest set with that probability; 1: all */
    uint64_t seed;          /**< draws are a function of seed and position, nothing else */
    bool ignore_eos;        /**< go on after an end-of-text token */
    bool keep_logits;       /**< keep the logits of each generated token for
                                 eep_engine_collect_logits() */
    bool score;             /**< generate nothing; sum the prompt's negative log-likelihood */
    uint64_t tag;           /**< the caller's, kept for eep_engine_tag() */
};

/**
 * Add a request. Collective.
 *
 * @param id_out  0, 1, 2, ... in the order of submission
 *
 * @retval EEP_ERR_INVALID  empty or too long a prompt, an id outside of the vocabulary, sampling
 *                          parameters out of range; the text has the numbers
 */
EEP_API enum eep_status eep_engine_submit(struct eep_engine *engine,
                                          const struct eep_request *request, uint64_t *id_out);

/**
 * Requests that come while others run. The ranks have eep_engine_open() called before the first
 * step; rank 0 then hands in requests as they come, and each gets its number, the same on every
 * rank, in a following step (EEP_EVENT_ACCEPTED). Steps go on, idle ones too, until rank 0 has said
 * that no more will come and all are finished. A request that was handed in to a rank 0 that is
 * lost before the step is nobody's: the tags of those that were accepted tell the next rank 0 where
 * to go on. Local.
 */
EEP_API void eep_engine_open(struct eep_engine *engine);

/**
 * Rank 0: hand in a request; its prompt is copied. Local.
 *
 * @retval EEP_ERR_INVALID  as eep_engine_submit()
 * @retval EEP_ERR_AGAIN    many wait to be taken already: after the next step
 */
EEP_API enum eep_status eep_engine_post(struct eep_engine *engine,
                                        const struct eep_request *request);

/** Rank 0: no more requests will come. Local. */
EEP_API void eep_engine_close_input(struct eep_engine *engine);

/** Rank 0: from the next step on all ranks are idle, also if requests are not finished. Local. */
EEP_API void eep_engine_stop(struct eep_engine *engine);

/** True when an administrator let this rank leave: its steps are idle, the others go on without it,
 *  and no collective call works here any more; destroy the engine and end the process. Local. */
EEP_API bool eep_engine_has_left(const struct eep_engine *engine);

/** Requests so far: their numbers are below it. The same on every rank. Local. */
EEP_API uint64_t eep_engine_requests(const struct eep_engine *engine);

/** Requests that are not finished. The same on every rank. Local. */
EEP_API uint64_t eep_engine_unfinished(const struct eep_engine *engine);

/** What the caller gave as the request's tag, and the number of its prompt's tokens. The same on
 *  every rank. Local. */
EEP_API uint64_t eep_engine_tag(const struct eep_engine *engine, uint64_t request);
EEP_API size_t eep_engine_prompt_tokens(const struct eep_engine *engine, uint64_t request);

enum eep_event_kind {
    EEP_EVENT_ACCEPTED, /**< a request that was handed in has this number */
    EEP_EVENT_TOKEN,    /**< a token was generated */
    EEP_EVENT_DONE,     /**< the request is finished: its last token was reported, or its score */
    EEP_EVENT_FAILED,   /**< the request failed alone; `reason` says why */
};

struct eep_event {
    enum eep_event_kind kind;
    uint64_t request; /**< its id */
    uint32_t token;   /**< EEP_EVENT_TOKEN */
    double nll;       /**< EEP_EVENT_DONE of a scored request: sum over tokens 1 .. n-1, natural
                           logarithm */
    char reason[128]; /**< EEP_EVENT_FAILED */
};

/**
 * One forward pass over all ranks, then a bounded part of a move of experts, if one is under way.
 * Collective.
 *
 * When a rank is lost, and on_loss is not STOP, those that are left take over and the step is made
 * again: EEP_OK, with other ranks. All that the events have told stays true, on every rank, and
 * each event comes once; what a request had already is computed again from its tokens.
 *
 * @param idle_out  true when there was nothing to do: no request, no move that has begun, and no
 *                  more requests to come
 */
EEP_API enum eep_status eep_engine_step(struct eep_engine *engine, bool *idle_out);

/** The next event in order of steps and requests; false when there is none. Local. */
EEP_API bool eep_engine_next_event(struct eep_engine *engine, struct eep_event *event_out);

/** Tokens generated so far for a request, owned by the engine until the next step; the same on
 *  every rank. Local. */
EEP_API const uint32_t *eep_engine_tokens(const struct eep_engine *engine, uint64_t request,
                                          size_t *count_out);

/**
 * Bring a finished request's kept logits to rank 0. Collective.
 *
 * @param logits_out  rank 0: (tokens, vocab) float32, owned by the caller, free() it; NULL on the
 *                    other ranks
 */
EEP_API enum eep_status eep_engine_collect_logits(struct eep_engine *engine, uint64_t request,
                                                  float **logits_out, size_t *tokens_out);

/** What became of the last rebalance; see eep_engine_rebalance(). */
enum eep_rebalance_state {
    EEP_REBALANCE_IDLE,    /**< none was asked for yet, or the last one is done */
    EEP_REBALANCE_RUNNING, /**< it is planned, or experts are on their way */
    EEP_REBALANCE_BUSY,    /**< it was put off: another engine moves; tried at the next trigger */
    EEP_REBALANCE_NO_MOVE, /**< no move pays; `reason` has the numbers */
    EEP_REBALANCE_FAILED,  /**< given up and rolled back; tried at the next trigger */
    EEP_REBALANCE_OFF,     /**< stopped for good; `reason` says why */
};

struct eep_rebalance_status {
    enum eep_rebalance_state state;
    uint64_t version;        /**< of the layout that is routed with */
    uint64_t rebalances;     /**< that changed the layout */
    uint64_t followed;       /**< versions of another engine that were taken over */
    uint64_t copies;         /**< experts copied by this rank */
    uint64_t bytes;          /**< of those */
    uint64_t chunks;         /**< versions published */
    uint64_t flip_ns;        /**< longest time that a change of version took between two steps */
    double imbalance_before; /**< largest / mean load of a seat, on average over the layers, when
                                  the last one was planned */
    double imbalance_after;  /**< as planned */
    uint64_t planned_copies; /**< of the last plan */
    char reason[256];        /**< the last outcome in words */
};

/**
 * Ask for a rebalance by the loads counted so far. It is planned and made between the following
 * steps. Collective.
 *
 * @retval EEP_ERR_INVALID      the engine has no weight cache, or no layer is MoE
 * @retval EEP_ERR_UNSUPPORTED  moving has been stopped for good; the text says why
 */
EEP_API enum eep_status eep_engine_rebalance(struct eep_engine *engine, bool dry_run);

/**
 * From now on this signal asks the engines of this process for a rebalance; one rank that gets it
 * is enough. A handler that the program has for it stays, and nothing changes. Local.
 */
EEP_API enum eep_status eep_engine_rebalance_on(int signal);

/** How moving goes. Local; the same on every rank but for copies, bytes and flip_ns. */
EEP_API void eep_engine_rebalance_status(const struct eep_engine *engine,
                                         struct eep_rebalance_status *status_out);

/** Memory of one rank by kind, in bytes. */
struct eep_rank_memory {
    uint64_t dense;    /**< weights that are not experts */
    uint64_t frames;   /**< expert weights */
    uint64_t kv;       /**< KV cache, when full */
    uint64_t buffers;  /**< activations, dispatch and combine, at most */
    uint64_t resident; /**< what the process really holds now */
    uint32_t node;
    uint32_t experts; /**< experts held, replicas and layers counted */
};

/** What runs here; see eep_engine_facts(). */
struct eep_engine_facts {
    const char *architecture; /**< such as "qwen3_moe" */
    const char *kernels;
    uint32_t ranks, nodes, threads;
    uint32_t layers, moe_layers, experts, top_k;
    uint32_t seats, slots_per_seat, redundant;
    uint64_t prompt_tokens, generated_tokens; /**< of all ranks so far */
    uint64_t prompt_ns;                       /**< time of steps that took prompt tokens */
    uint64_t generation_ns;                   /**< time of the other steps */
    uint64_t generation_step_tokens;          /**< tokens of those other steps */
    uint64_t steps;
    uint64_t load_ns;
    const char *cache_path;  /**< directory of the weight cache, owned by the engine; NULL: none */
    uint64_t cache_bytes;    /**< of this rank's node */
    bool cache_kept;         /**< it stays after the last engine has left */
    bool cache_attached;     /**< it was there, complete, before this start */
    uint64_t cache_ns;       /**< this rank's time to find, check and, where needed, fill it */
    uint64_t map_ns;         /**< and to map its pages */
    uint64_t layout_version; /**< of the cache's record; 0 without one */
    const struct eep_rank_memory *memory; /**< (ranks), owned by the engine */
};

/** Collect the facts of all ranks. Collective. */
EEP_API enum eep_status eep_engine_facts(struct eep_engine *engine,
                                         struct eep_engine_facts *facts_out);

#ifdef __cplusplus
}
#endif
#endif
