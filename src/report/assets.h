/* assets.h - the files of assets/, embedded when the program is built (cmake/asset_texts.cmake).
 *
 * Room:  report. Texts that end with a NUL. */
#ifndef CPL_REPORT_ASSETS_H
#define CPL_REPORT_ASSETS_H

extern const unsigned char cpl_asset_page_html[]; /* {{name}} marks what page.c puts in */
extern const unsigned char cpl_asset_page_css[];
extern const unsigned char cpl_asset_page_js[];
extern const unsigned char cpl_asset_charts_js[];

#endif /* CPL_REPORT_ASSETS_H */
