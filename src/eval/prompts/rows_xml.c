/* rows_xml.c - rows of an XML file; see rows.h
 *
 * expat calls the handlers below. It is stopped at the end of an element that is a row, and resumed
 * when the next row is read. No entity outside of the file is read, and expat itself bounds the
 * expansion of entities. An entity that the file does not define makes its row bad; inside the
 * value of an attribute expat leaves it out without an error. */
#include <string.h>

#include <expat.h>

#include "base/arena.h"
#include "base/text.h"
#include "eval/prompts/internal.h"

enum { MOST_DEPTH = 127 };

struct cpl_rows_xml {
    XML_Parser parser;
    int64_t depth;     /* open elements, outside of and inside rows */
    int64_t row_depth; /* of the row's element; 0: outside of rows */
    json_t *row;       /* its members so far */
    cpl_text name;     /* of the child element that is open */
    bool complete;     /* the row, good or bad */
    bool stopped;      /* and not yet resumed */
    bool last;         /* expat has got all bytes of the file */
    uint64_t handed;   /* bytes given to expat */
};

static int64_t line_of(const cpl_rows *r)
{
    return (int64_t)XML_GetCurrentLineNumber(r->xml->parser);
}

/* Stops for good if something failed. */
static void check(cpl_rows *r)
{
    if (r->status == CPL_OK) r->status = cpl_text_status(&r->text);
    if (r->status == CPL_OK) r->status = cpl_text_status(&r->xml->name);
    if (r->status != CPL_OK) XML_StopParser(r->xml->parser, XML_FALSE);
}

/* The reader's text becomes a member. */
static void set_member(cpl_rows *r, const char *name)
{
    if (r->message.length || r->text.failed) return;
    if (json_object_get(r->xml->row, name))
        cpl_rows_bad(r, line_of(r), 0, "a second \"%.64s\" in one row", name);
    else
        cpl_rows_set(r, r->xml->row, name,
                     cpl_rows_string(r, line_of(r), r->text.bytes, r->text.length));
}

static void begin_row(cpl_rows *r, const char *const *attributes)
{
    cpl_rows_xml *xml = r->xml;
    xml->row_depth    = xml->depth;
    cpl_rows_begin(r, line_of(r));
    if (!(xml->row = json_object())) cpl_rows_no_memory(r);
    for (; r->status == CPL_OK && *attributes; attributes += 2) {
        cpl_text_clear(&r->text);
        cpl_rows_keep(r, attributes[1], strlen(attributes[1]));
        set_member(r, attributes[0]);
    }
}

static void on_begin(void *reader, const char *element, const char **attributes)
{
    cpl_rows *r       = reader;
    cpl_rows_xml *xml = r->xml;
    if (++xml->depth > MOST_DEPTH)
        cpl_rows_fail(r, line_of(r), 0, "more than %d elements inside each other", MOST_DEPTH);
    if (!xml->row_depth && strcmp(element, r->kind.member) == 0) {
        begin_row(r, attributes);
    } else if (xml->row_depth && xml->depth == xml->row_depth + 1) {
        cpl_text_clear(&r->text);
        cpl_text_clear(&xml->name);
        cpl_text_append(&xml->name, element, strlen(element));
        r->row_bytes += strlen(element); /* a row of empty elements has a bound too */
        cpl_rows_keep(r, "", 0);
    }
    check(r);
}

static void on_end(void *reader, const char *element)
{
    cpl_rows *r       = reader;
    cpl_rows_xml *xml = r->xml;
    (void)element;
    if (xml->row_depth && xml->depth == xml->row_depth + 1 && !xml->name.failed)
        set_member(r, xml->name.bytes);
    if (xml->depth == xml->row_depth) {
        xml->row_depth = 0;
        xml->complete  = true;
        XML_StopParser(xml->parser, XML_TRUE);
    }
    xml->depth--;
    check(r);
}

static void on_text(void *reader, const char *bytes, int length)
{
    cpl_rows *r       = reader;
    cpl_rows_xml *xml = r->xml;
    if (!xml->row_depth) return;
    if (xml->depth > xml->row_depth)
        cpl_rows_keep(r, bytes, (size_t)length);
    else
        for (int i = 0; i < length; i++)
            if (!strchr(" \t\r\n", bytes[i]))
                cpl_rows_bad(r, line_of(r), 0, "text outside of the elements of its row");
    check(r);
}

static void on_skipped(void *reader, const char *entity, int of_definitions)
{
    cpl_rows *r = reader;
    if (r->xml->row_depth && !of_definitions)
        cpl_rows_bad(r, line_of(r), 0, "the file does not say what &%.64s; is", entity);
    check(r);
}

cpl_status cpl_rows_xml_open(cpl_rows *r)
{
    const XML_Memory_Handling_Suite memory = {cpl_alloc, cpl_realloc, cpl_free};
    cpl_rows_xml *xml                      = cpl_alloc(sizeof *xml);
    if (!xml) return CPL_ERR_MEMORY;
    memset(xml, 0, sizeof *xml);
    r->xml = xml;
    if (!(xml->parser = XML_ParserCreate_MM(NULL, &memory, NULL)))
        return CPL_FAIL(CPL_ERR_MEMORY, "%s: out of memory for XML", r->path);
    XML_SetUserData(xml->parser, r);
    XML_SetElementHandler(xml->parser, on_begin, on_end);
    XML_SetCharacterDataHandler(xml->parser, on_text);
    XML_SetSkippedEntityHandler(xml->parser, on_skipped);
    return CPL_OK;
}

void cpl_rows_xml_close(cpl_rows_xml *xml)
{
    if (!xml) return;
    if (xml->parser) XML_ParserFree(xml->parser);
    json_decref(xml->row);
    cpl_text_free(&xml->name);
    cpl_free(xml);
}

/* Gives the next bytes to expat, or resumes it with those it has. */
static void go_on(cpl_rows *r)
{
    cpl_rows_xml *xml = r->xml;
    enum XML_Status done;
    if (xml->stopped) {
        done = XML_ResumeParser(xml->parser);
    } else {
        xml->last = cpl_rows_peek(r) < 0;
        if (r->status != CPL_OK) return;
        xml->handed += r->got - r->at;
        done  = XML_Parse(xml->parser, r->chunk + r->at, (int)(r->got - r->at), xml->last);
        r->at = r->got;
    }
    xml->stopped = done == XML_STATUS_SUSPENDED;
    if (done != XML_STATUS_ERROR || r->status != CPL_OK) return;
    if (XML_GetErrorCode(xml->parser) == XML_ERROR_NO_MEMORY)
        cpl_rows_no_memory(r);
    else
        cpl_rows_fail(r, line_of(r), (int64_t)XML_GetCurrentColumnNumber(xml->parser) + 1,
                      "not well-formed XML: %s", XML_ErrorString(XML_GetErrorCode(xml->parser)));
}

/* expat holds bytes that are not parsed yet: the beginning of a tag, for example. They are bounded
 * too. */
static void bound_what_waits(cpl_rows *r)
{
    XML_Index at = XML_GetCurrentByteIndex(r->xml->parser);
    if (r->status == CPL_OK && !r->xml->stopped && at >= 0 &&
        r->xml->handed - (uint64_t)at > r->kind.max_bytes)
        cpl_rows_fail(r, line_of(r), 0, "a tag longer than the %zu bytes a row may have",
                      r->kind.max_bytes);
}

json_t *cpl_rows_next_xml(cpl_rows *r)
{
    cpl_rows_xml *xml = r->xml;
    xml->complete     = false;
    while (r->status == CPL_OK && !xml->complete && (xml->stopped || !xml->last)) {
        go_on(r);
        bound_what_waits(r);
    }
    json_t *row = xml->row;
    xml->row    = NULL;
    return row;
}
