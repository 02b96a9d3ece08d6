/* xml_check.h - a small strict reader of XML for tests: that a text is well-formed, and how many
 * elements of a class it has. No DTD, no comments, no CDATA: what charts are written in. */
#ifndef CPL_TESTS_REPORT_XML_CHECK_H
#define CPL_TESTS_REPORT_XML_CHECK_H

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { XML_DEPTH = 32, XML_NAME = 48 };

typedef struct xml_reader {
    const char *at;
    char open[XML_DEPTH][XML_NAME];
    int depth;
    int64_t n_elements, n_numbers;
} xml_reader;

static inline void xml_fault(const xml_reader *x, const char *what)
{
    fail_msg("not well-formed: %s at \"%.60s\"", what, x->at);
}

/* One of the five entities or a character number. */
static inline void xml_entity(xml_reader *x)
{
    static const char *const good[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (strncmp(x->at, good[i], strlen(good[i])) == 0) {
            x->at += strlen(good[i]);
            return;
        }
    xml_fault(x, "an ampersand that is no entity");
}

static inline void xml_name(xml_reader *x, char name[XML_NAME])
{
    size_t n = strspn(x->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-:0123456789");
    if (n == 0 || n >= XML_NAME || !isalpha((unsigned char)*x->at)) xml_fault(x, "no name");
    memcpy(name, x->at, n);
    name[n] = '\0';
    x->at += n;
}

/* Numbers of coordinates must be finite and not far off the sheet. */
static inline void xml_value(xml_reader *x, const char *name, const char *value, size_t length)
{
    static const char *const numbers[] = {"x",  "y",  "x1", "y1",    "x2",    "y2",
                                          "cx", "cy", "r",  "width", "height"};
    char *end, text[64];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(name, numbers[i]) != 0) continue;
        snprintf(text, sizeof text, "%.*s", (int)(length < 63 ? length : 63), value);
        double number = strtod(text, &end);
        if (*end || length == 0 || !isfinite(number) || fabs(number) > 2000)
            fail_msg("%s=\"%s\" is no coordinate", name, text);
        x->n_numbers++;
    }
    if (strcmp(name, "d") == 0 || strcmp(name, "transform") == 0)
        for (size_t i = 0; i + 2 < length; i++)
            if (strncmp(value + i, "nan", 3) == 0 || strncmp(value + i, "inf", 3) == 0)
                fail_msg("%s=\"%.60s\" is no path", name, value);
}

static inline void xml_attribute(xml_reader *x)
{
    char name[XML_NAME];
    xml_name(x, name);
    if (strncmp(x->at, "=\"", 2) != 0) xml_fault(x, "an attribute without a value");
    const char *value = x->at += 2;
    while (*x->at && *x->at != '"') {
        if (*x->at == '<') xml_fault(x, "a tag in an attribute");
        if (*x->at == '&')
            xml_entity(x);
        else
            x->at++;
    }
    if (!*x->at) xml_fault(x, "an attribute without an end");
    xml_value(x, name, value, (size_t)(x->at++ - value));
}

static inline void xml_tag(xml_reader *x)
{
    char name[XML_NAME];
    bool end = x->at[1] == '/';
    x->at += 1 + end;
    xml_name(x, name);
    if (end) {
        if (x->depth == 0 || strcmp(x->open[--x->depth], name) != 0) xml_fault(x, name);
    } else {
        x->n_elements++;
        if (x->depth == XML_DEPTH) xml_fault(x, "too deep");
        strcpy(x->open[x->depth++], name);
        while (*x->at == ' ' || *x->at == '\n') {
            x->at += strspn(x->at, " \n");
            xml_attribute(x);
        }
        if (*x->at == '/') {
            x->depth--;
            x->at++;
        }
    }
    if (*x->at++ != '>') xml_fault(x, "a tag without an end");
}

/* Fails unless `text` is one well-formed element, with or without the declaration in front. */
static inline int64_t xml_check(const char *text)
{
    static const char declaration[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    xml_reader x                    = {.at = text};
    if (strncmp(text, declaration, sizeof declaration - 1) == 0) x.at += sizeof declaration - 1;
    while (*x.at) {
        unsigned char c = (unsigned char)*x.at;
        if (c == '<')
            xml_tag(&x);
        else if (c == '&')
            xml_entity(&x);
        else if (c == '>' || (c < 0x20 && c != '\n') || (x.depth == 0 && c != '\n'))
            xml_fault(&x, "a character where none may be");
        else
            x.at++;
    }
    if (x.depth != 0) xml_fault(&x, "an element without an end");
    return x.n_elements;
}

static inline int64_t count_of(const char *text, const char *part)
{
    int64_t count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) count++;
    return count;
}

#endif /* CPL_TESTS_REPORT_XML_CHECK_H */
