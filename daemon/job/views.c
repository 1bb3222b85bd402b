#include "daemon/job/views.h"

#include <string.h>

#include "daemon/job/store.h"

/* Ascending nodes, and which of them breaks ties. */
struct nodes {
    const uint16_t *node;
    uint32_t count;
    uint16_t tie_breaker;
};

static struct nodes nodes_known(const struct views *views)
{
    const struct known_view *known = views_known(views);

    return (struct nodes){known->node, known->nodes, known->tie_breaker};
}

static struct nodes nodes_promised(const struct promised_view *promised)
{
    return (struct nodes){promised->node, promised->nodes, promised->tie_breaker};
}

static struct nodes nodes_of(const struct membership *members)
{
    return (struct nodes){members->node, members->nodes, members->tie_breaker};
}

/* Lists the nodes that are in both, if `common` is not NULL. Returns their number. */
static uint32_t nodes_both(struct nodes one, struct nodes other, uint16_t *common)
{
    uint32_t count = 0;

    for (uint32_t i = 0, j = 0; i < one.count && j < other.count;) {
        if (one.node[i] == other.node[j] && common != NULL) {
            common[count] = one.node[i];
        }
        count += one.node[i] == other.node[j];
        if (one.node[i] <= other.node[j]) {
            i++;
        } else {
            j++;
        }
    }
    return count;
}

static uint32_t nodes_common(struct nodes one, struct nodes other)
{
    return nodes_both(one, other, NULL);
}

static bool nodes_equal(struct nodes one, struct nodes other)
{
    return one.count == other.count && nodes_common(one, other) == one.count &&
           one.tie_breaker == other.tie_breaker;
}

/* Whether `some` are more than half of `all`, or the half with the one that breaks ties. */
static bool nodes_outvote(struct nodes some, struct nodes all)
{
    const uint32_t common = nodes_common(some, all);
    const struct nodes deciding = {.node = &all.tie_breaker, .count = 1};

    return 2 * common > all.count || (2 * common == all.count && nodes_common(some, deciding) == 1);
}

int views_place(const struct views *views, uint16_t node)
{
    const struct known_view *known = views_known(views);

    for (uint32_t i = 0; i < known->nodes; i++) {
        if (known->node[i] == node) {
            return (int)i;
        }
    }
    return -1;
}

uint64_t views_grown_by(const struct views *views, uint64_t step)
{
    const uint64_t even = views->grown[0] <= step ? views->grown[0] : 0;
    const uint64_t odd = views->grown[1] <= step ? views->grown[1] : 0;

    return even > odd ? even : odd;
}

bool views_leave_out(const struct views *views, uint16_t node)
{
    return views_known(views)->nodes > 0 && views_place(views, node) < 0;
}

uint64_t views_since(const struct views *views, uint16_t node)
{
    const struct known_view *known = views_known(views);
    const int place = views_place(views, node);

    if (known->nodes == 0) {
        return 0;
    }
    return place >= 0 ? known->since[place] : SINCE_UNKNOWN;
}

bool views_counts(const struct views *views, unsigned i)
{
    return views->promised[i].view > views_known(views)->view;
}

bool views_allow(const struct views *views, const struct membership *members)
{
    const struct nodes some = nodes_of(members), all = nodes_known(views);
    uint16_t voter[CORE_MAX_NODES];
    struct nodes voters = {.node = voter};

    if (all.count == 0) {
        return true;
    }
    if (!nodes_outvote(some, all)) {
        return false;
    }
    voters.count = nodes_both(some, all, voter);
    for (unsigned i = 0; i < VIEWS_PROMISED; i++) {
        if (views_counts(views, i) && !nodes_outvote(voters, nodes_promised(&views->promised[i]))) {
            return false;
        }
    }
    return true;
}

/* The slot of a promised view with these nodes, or else one that does not count; NULL: all count.
 */
static struct promised_view *views_slot(struct views *views, struct nodes nodes)
{
    struct promised_view *slot = NULL;

    for (unsigned i = 0; i < VIEWS_PROMISED; i++) {
        if (views_counts(views, i) && nodes_equal(nodes, nodes_promised(&views->promised[i]))) {
            return &views->promised[i];
        }
        slot = slot == NULL && !views_counts(views, i) ? &views->promised[i] : slot;
    }
    return slot;
}

static bool views_add(struct views *views, struct nodes nodes, uint32_t view)
{
    struct promised_view *slot = views_slot(views, nodes);

    if (slot == NULL) {
        return false;
    }
    if (slot->view <= views_known(views)->view) { /* it is another one so far */
        store_publish(&slot->view, 0);
        slot->nodes = nodes.count;
        slot->tie_breaker = nodes.tie_breaker;
        (void)memcpy(slot->node, nodes.node, nodes.count * sizeof(*nodes.node));
    }
    store_publish(&slot->view, view > slot->view ? view : slot->view);
    return true;
}

bool views_promise(struct views *views, const struct membership *members, uint32_t view)
{
    const struct nodes nodes = nodes_of(members), known = nodes_known(views);

    /* A view with the same members and tie-breaker demands no more than the known one. */
    return known.count == 0 || nodes_equal(nodes, known) || views_add(views, nodes, view);
}

/* Puts the known view that is being made in force, with what is declared. */
static void views_publish(struct views *views, const struct declared *declared)
{
    const struct known_view *next = &views->known[(views->changes + 1) % 2];

    views->declared[(views->changes + 1) % 2] = *declared;
    for (uint32_t i = 0; i < next->nodes; i++) {
        uint64_t *grown = &views->grown[next->since[i] % 2];
        *grown = next->since[i] > *grown ? next->since[i] : *grown;
    }
    store_publish(&views->changes, views->changes + 1);
}

static void views_put(struct views *views, const struct known_view *known)
{
    views->known[(views->changes + 1) % 2] = *known;
    views_publish(views, views_declared(views));
}

void views_take(struct views *views, const struct membership *members, uint32_t view,
    const struct declared *declared)
{
    struct known_view *next = &views->known[(views->changes + 1) % 2];

    next->view = view;
    next->nodes = members->nodes;
    next->tie_breaker = members->tie_breaker;
    (void)memcpy(next->node, members->node, members->nodes * sizeof(*members->node));
    (void)memcpy(next->ranks, members->ranks, members->nodes * sizeof(*members->ranks));
    (void)memcpy(next->since, members->since, members->nodes * sizeof(*members->since));
    views->founders = views->founders != 0 ? views->founders : members->nodes;
    views_publish(views, declared);
}

void views_adopt(struct views *views, const struct known_view *known, uint32_t founders)
{
    for (unsigned i = 0; i < VIEWS_PROMISED; i++) {
        store_publish(&views->promised[i].view, 0);
    }
    views->founders = founders;
    views_put(views, known);
}

bool views_learn(struct views *views, const struct known_view *known)
{
    bool news = known->view > views_known(views)->view;

    if (news) {
        views_put(views, known);
    }
    return news;
}

bool views_learn_promised(struct views *views, const struct promised_view *heard)
{
    const struct nodes promised = nodes_promised(heard);

    if (heard->view <= views_known(views)->view || nodes_equal(promised, nodes_known(views))) {
        return false;
    }
    for (unsigned i = 0; i < VIEWS_PROMISED; i++) {
        if (views_counts(views, i) && nodes_equal(promised, nodes_promised(&views->promised[i]))) {
            (void)views_add(views, promised, heard->view); /* it may have a higher number */
            return false;
        }
    }
    return views_add(views, promised, heard->view);
}

static bool nodes_fit(struct nodes nodes)
{
    if (nodes.count > CORE_MAX_NODES) {
        return false;
    }
    for (uint32_t i = 1; i < nodes.count; i++) {
        if (nodes.node[i] <= nodes.node[i - 1]) {
            return false;
        }
    }
    return true;
}

bool views_fit(const struct views *views)
{
    bool fit = nodes_fit(nodes_known(views)) && views_before(views)->nodes <= CORE_MAX_NODES &&
               declared_fits(views_declared(views));

    for (unsigned i = 0; i < VIEWS_PROMISED; i++) {
        const struct promised_view *promised = &views->promised[i];
        fit = fit && (promised->view == 0 || nodes_fit(nodes_promised(promised)));
    }
    return fit;
}

void views_merge(struct views *views, const struct views *other)
{
    views->founders = views->founders != 0 ? views->founders : other->founders;
    (void)views_learn(views, views_known(other));
    for (unsigned i = 0; i < VIEWS_PROMISED; i++) {
        (void)views_learn_promised(views, &other->promised[i]);
    }
}
