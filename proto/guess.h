/*
 * The known name that an unknown one is most like: for "did you mean".
 *
 *     guess_start(&guess, "densty", 0);
 *     guess_name(&guess, "density");        for each known name
 *     guess_text(&guess, text)              "; did you mean \"density\"?"
 */
#ifndef ADTOPK_GUESS_H
#define ADTOPK_GUESS_H

#define GUESS_SIZE 40 /* of a name, including the NUL; longer names are never guessed */
#define GUESS_TEXT_SIZE (GUESS_SIZE + 24)

struct guess {
    const char *word;
    unsigned prefix;
    unsigned distance; /* to `name`; more than the limit: there is no guess yet */
    char name[GUESS_SIZE];
};

/** Begins a search for names like `word`, which must outlive it. All names begin with `prefix`
 * bytes that do not count as a likeness: 2 for "--", 0 for most names. */
void guess_start(struct guess *guess, const char *word, unsigned prefix);

/** Tries one known name. The first of several equally good ones stays. */
void guess_name(struct guess *guess, const char *name);

/** The end of a sentence that asks for the best name, or "" if none is like the word. */
const char *guess_text(const struct guess *guess, char text[GUESS_TEXT_SIZE]);

#define GUESS_LIST_SIZE 200

/** The same of a list: asks for the best name, or names all if none is like the word. */
const char *guess_of(
    const char *word, const char *const *names, unsigned count, char text[GUESS_LIST_SIZE]);

#endif
